"""Files that are no recording we read: named for what they are, with what would do instead."""

from __future__ import annotations

from pathlib import Path

from smodice_cli.errors import InputError

FORMATS = (
    "read are D4RL, Minari, robomimic and ALOHA HDF5, LeRobot v2.1 and v3, npz (also OGBench's and mjlab's), npy, CSV, "
    "parquet, diffusion-policy zarr, and folders or patterns of these"
)
MAGIC = (  # the first bytes of a file, and what it then is
    (b"\x80\x02", "a pickle"),
    (b"\x80\x03", "a pickle"),
    (b"\x80\x04", "a pickle"),
    (b"\x80\x05", "a pickle"),
    (b"\x89MCAP0", "a ROS 2 bag (MCAP)"),
    (b"#ROSBAG", "a ROS bag"),
    (b"SQLite format 3", "an SQLite database, perhaps a ROS 2 bag"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ", "an xz archive"),
    (b"(\xb5/\xfd", "a zstandard archive"),
    (b"MATLAB 5.0", "a MATLAB file"),
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"ARROW1", "an Arrow file"),
)
ADVICE = {
    "a pickle": "pickles run code when they are opened and are never read: save its arrays with numpy.savez",
    "a gzip archive": "unpack it first",
    "a bzip2 archive": "unpack it first",
    "an xz archive": "unpack it first",
    "a zstandard archive": "unpack it first",
}
RLDS = "an RLDS (TensorFlow) data set"
MARKS = {"dataset_info.json": RLDS, "features.json": RLDS, "_versions": "a Lance store"}  # in folders


def refused(path: Path) -> InputError:
    """The error of something that cannot be read: what it is, and what can be."""
    what = what_is(path)
    wanted = "is not an HDF5 file, or is cut short: it" if path.suffix in (".hdf5", ".h5") else "cannot be read: it"
    return InputError(f"{path} {wanted} is {what}", ADVICE.get(what, FORMATS))


def what_is(path: Path) -> str:
    """What something on the disk is, as far as its first bytes or its names tell."""
    if path.is_dir():
        return next((what for name, what in MARKS.items() if (path / name).exists()), "a folder without recordings")
    with open(path, "rb") as handle:
        start = handle.read(512)
    if not start:
        return "an empty file"
    if found := [what for magic, what in MAGIC if start.startswith(magic)]:
        return found[0]
    if start[4:8] == b"ftyp" or start[:4] in (b"RIFF", b"\x1aE\xdf\xa3"):
        return "a video"
    if path.suffix in (".tfrecord", ".rlds") or ".tfrecord" in path.name:
        return RLDS
    try:
        text = start.decode()
    except UnicodeDecodeError:
        return "of a format that is not known here"
    return "JSON" if text.lstrip()[:1] in "{[" else "text"
