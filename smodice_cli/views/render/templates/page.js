// Tables sort by a column when its heading is pressed; numbers as numbers, text as text, empty cells last.
document.querySelectorAll("table.sortable").forEach(function (table) {
  var heads = table.tHead.rows[0].cells;
  Array.prototype.forEach.call(heads, function (head, column) {
    var button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", function () {
      var up = head.getAttribute("aria-sort") !== "ascending";
      Array.prototype.forEach.call(heads, function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      var body = table.tBodies[0];
      var value = function (row) { var cell = row.cells[column]; return cell.dataset.value || cell.textContent.trim(); };
      Array.prototype.slice.call(body.rows).sort(function (a, b) {
        var x = value(a), y = value(b);
        if (!x || !y) return (x ? 0 : 1) - (y ? 0 : 1);
        var order = isNaN(x) || isNaN(y) ? x.localeCompare(y, undefined, { numeric: true }) : x - y;
        return up ? order : -order;
      }).forEach(function (row) { body.appendChild(row); });
    });
  });
});
// What is wider than its box says so.
var boxes = document.querySelectorAll(".scroll");
Array.prototype.forEach.call(boxes, function (box) {
  var hint = document.createElement("p");
  hint.className = "hint";
  hint.textContent = "scroll sideways to see all of it \u2192";
  box.insertBefore(hint, box.firstChild);
});
var tell = function () {
  Array.prototype.forEach.call(boxes, function (box) {
    box.classList.toggle("scrolls", box.scrollWidth > box.clientWidth + 1);
  });
};
addEventListener("load", tell);
addEventListener("resize", tell);
document.addEventListener("toggle", tell, true);
