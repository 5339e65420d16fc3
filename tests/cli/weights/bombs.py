# bombs.py WEIGHTS TRACE: writes both as zip files of deflated members, weights.pth and attentions.pt; and bomb.pth,
# the weights with further members that declare 4.06 GiB, more than doctor unpacks.
import copy
import sys
import zipfile


def deflate(source, file):
    with zipfile.ZipFile(source) as members:
        for member in members.infolist():
            file.writestr(member.filename, members.read(member))


for source, name in zip(sys.argv[1:], ("weights.pth", "attentions.pt")):
    with zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED) as file:
        deflate(source, file)

with zipfile.ZipFile("bomb.pth", "w", zipfile.ZIP_DEFLATED) as file:
    deflate(sys.argv[1], file)
    file.writestr("archive/extra", bytes(64 << 20))
    size = file.filelist[-1].compress_size
    file.fp.seek(file.fp.tell() - size)
    packed = file.fp.read(size)
    for i in range(64):
        again = copy.copy(file.filelist[-1])
        again.filename, again.header_offset = "archive/extra%d" % i, file.fp.tell()
        file.fp.write(again.FileHeader() + packed)
        file.filelist.append(again)
    file.start_dir = file.fp.tell()
