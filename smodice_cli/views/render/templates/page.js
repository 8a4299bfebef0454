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
