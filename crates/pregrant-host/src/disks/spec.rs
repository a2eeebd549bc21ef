//! The image of a disk as the toolstack names it in the vbd's xenstore key `params`.
//!
//! ```text
//!   /var/disk.img   aio:/var/disk.img   raw:/var/disk.img   file:/var/disk.img   phy:/dev/vg/disk      a raw file, a block device
//!   phy:vg/disk     vg/disk                                                                            the same, below /dev
//!   ram:64M                                                                                            memory of the back's process
//! ```
//! A path that does not begin with `/` is relative to `/dev`, as xl-disk-configuration(5) defines
//! it for a disk's target: xl copies the target to `params` unchanged and leaves the check to the
//! script.

use crate::excerpt::excerpt;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The image that the key `params` names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ImageSpec {
    /// The image is a raw file or a block device; the file's type decides which.
    Path(PathBuf),
    /// The image is this number of bytes of memory.
    Ram(u64),
}

/// The text does not name an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownImage(String);

impl fmt::Display for UnknownImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} names no image: a raw file or a block device (/PATH, aio:/PATH, phy:/dev/PATH; PATH without a / before it is \
             /dev/PATH), or ram:64M; qcow2 and other formats are for qemu (qemu-img convert -O raw makes a raw file of one)",
            excerpt(&self.0, 200)
        )
    }
}

impl std::error::Error for UnknownImage {}

/// Names of formats that mean "raw".
const RAW: [&str; 4] = ["aio", "raw", "file", "phy"];
/// A limit for RAM disks that is more than the memory of any machine, and small enough for a file
/// offset.
const RAM_MOST: u64 = 1 << 46;
/// The directory to which a path is relative that does not begin with `/`.
const DEV: &str = "/dev";

impl FromStr for ImageSpec {
    type Err = UnknownImage;

    fn from_str(text: &str) -> Result<Self, UnknownImage> {
        let unknown = || UnknownImage(text.into());
        let path = match text.split_once(':') {
            _ if text.starts_with('/') => text,
            Some(("ram", size)) => return bytes(size).map(Self::Ram).ok_or_else(unknown),
            Some((format, path)) if RAW.contains(&format) => path,
            Some(_) => return Err(unknown()),
            None => text,
        };
        // `join` returns a path that begins with `/` unchanged.
        if path.is_empty() { Err(unknown()) } else { Ok(Self::Path(Path::new(DEV).join(path))) }
    }
}

/// Parses a size such as `64M` in bytes, KiB, MiB or GiB. It must be at least one whole sector.
fn bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (&text[..at], 10),
        (at, 'm' | 'M') => (&text[..at], 20),
        (at, 'g' | 'G') => (&text[..at], 30),
        _ => (text, 0),
    };
    let n = digits.parse::<u64>().ok().filter(|_| !digits.starts_with('+'))?.checked_mul(1 << shift)?;
    (n > 0 && n.is_multiple_of(4096) && n <= RAM_MOST).then_some(n)
}

impl fmt::Display for ImageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Ram(bytes) if bytes.is_multiple_of(1 << 20) => write!(f, "ram:{}M", bytes >> 20),
            Self::Ram(bytes) => write!(f, "ram:{bytes}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_named_as_toolstacks_name_them() {
        let path = |text: &str, path: &str| assert_eq!(text.parse(), Ok(ImageSpec::Path(path.into())));
        path("/a/b", "/a/b");
        path("aio:/a:b", "/a:b");
        path("raw:/a", "/a");
        path("phy:/dev/vg/x", "/dev/vg/x");
        for below_dev in ["phy:vg/x", "vg/x", "aio:vg/x"] {
            path(below_dev, "/dev/vg/x");
        }
        for (text, bytes, again) in [
            ("ram:64M", 64 << 20, "ram:64M"),
            ("ram:4096", 4096, "ram:4096"),
            ("ram:2g", 2 << 30, "ram:2048M"),
        ] {
            let spec: ImageSpec = text.parse().unwrap();
            assert_eq!((&spec, spec.to_string().as_str()), (&ImageSpec::Ram(bytes), again));
        }
        let bad = [
            "",
            "aio:",
            "phy:",
            "vg:x",
            "qcow2:/a",
            "qcow2:a",
            "ram:",
            "ram:0",
            "ram:M",
            "ram:+1M",
            "ram:-1M",
            "ram:513",
            "ram:99999999999G",
        ];
        for text in bad {
            let why = text.parse::<ImageSpec>().unwrap_err().to_string();
            assert!(why.contains("ram:64M"), "{why}");
        }
    }
}
