//! Detects images of other formats that are served as raw: a guest whose qcow2 file is configured
//! as raw gets the qcow2 header as its first sector.
//!
//! What a guest may do: write such a header to its own disk. The log then warns of that format when
//! the disk is attached the next time.

use pregrant::blk::disk::{Buffer, SECTOR_BYTES};
use rustix::fd::BorrowedFd;
use rustix::io::pread;

/// For each format: its name, the offset of its magic in the image, and the magic.
const MARKS: [(&str, usize, &[u8]); 8] = [
    ("qcow2", 0, b"QFI\xfb"),
    ("vmdk", 0, b"KDMV"),
    ("vmdk", 0, b"# Disk DescriptorFile"),
    ("vhdx", 0, b"vhdxfile"),
    ("vhd", 0, b"conectix"),
    ("vdi", 64, &[0x7f, 0x10, 0xda, 0xbe]),
    ("qed", 0, b"QED\0"),
    ("parallels", 0, b"WithoutFreeSpace"),
];
/// A vhd of fixed size begins with the disk and ends with a footer of this magic.
const VHD_END: &[u8] = b"conectix";
/// Number of bytes to read, aligned for direct I/O.
const READ: usize = Buffer::ALIGNMENT;

/// Returns the format that an open image looks like. None: it looks raw, or cannot be read.
pub(super) fn of(fd: BorrowedFd<'_>, sectors: u64) -> Option<&'static str> {
    let first = bytes_at(fd, 0)?;
    let is_marked = |(_, at, mark): &&(&str, usize, &[u8])| {
        first.bytes().get(*at..).is_some_and(|rest| rest.starts_with(mark))
    };
    if let Some((name, ..)) = MARKS.iter().find(is_marked) {
        return Some(name);
    }
    let end = sectors.checked_mul(SECTOR_BYTES as u64)?;
    let at = end.saturating_sub(SECTOR_BYTES as u64) / READ as u64 * READ as u64;
    let last = bytes_at(fd, at)?;
    let footer = (end - at) as usize - SECTOR_BYTES.min(end as usize);
    last.bytes().get(footer..).filter(|rest| rest.starts_with(VHD_END)).map(|_| "vhd")
}

/// Reads those bytes of the page at `at` that the file has.
fn bytes_at(fd: BorrowedFd<'_>, at: u64) -> Option<Buffer> {
    let mut buffer = Buffer::new(READ);
    buffer.set_len(READ);
    let read = pread(fd, buffer.bytes_mut(), at).ok()?;
    buffer.set_len(read);
    Some(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    #[test]
    fn formats_that_are_not_raw_are_known_by_their_marks() {
        let path = std::env::temp_dir().join(format!("pregrant-format-{}", std::process::id()));
        let file = File::create_new(&path).map(|_| File::options().read(true).write(true).open(&path));
        let file = file.unwrap().unwrap();
        std::fs::remove_file(&path).unwrap();
        for len in [512, 4096, 65536 + 512, 1 << 20] {
            file.set_len(0).unwrap();
            file.set_len(len).unwrap();
            assert_eq!(of(file.as_fd(), len / 512), None, "{len}");
            for (name, at, mark) in MARKS {
                file.write_all_at(mark, at as u64).unwrap();
                assert_eq!(of(file.as_fd(), len / 512), Some(name), "{len}");
                file.write_all_at(&[0; 32], at as u64).unwrap();
            }
            file.write_all_at(VHD_END, len - 512).unwrap();
            assert_eq!(of(file.as_fd(), len / 512), Some("vhd"), "{len}");
        }
        file.set_len(0).unwrap();
        assert_eq!(of(file.as_fd(), 0), None);
    }
}
