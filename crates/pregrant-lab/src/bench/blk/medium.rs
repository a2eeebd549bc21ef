//! The medium of the measured disks: memory of the backend, or files that are made for it.

use super::BlkArgs;
use crate::bench::Result;
use pregrant_testbed::named;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

named! {
    pub enum Medium {
        /// Memory of the backend's process
        Ram = "ram",
        /// A file, opened as `pregrant blkback` opens it
        File = "file",
    }
}

#[derive(Clone, Copy)]
pub struct Files<'a> {
    /// The path of the first file; the others are in the same directory.
    pub first: &'a Path,
    /// Number of files that were created already.
    pub made: usize,
}

impl Medium {
    pub fn of(args: &BlkArgs) -> impl Iterator<Item = Self> {
        [Some(Self::Ram), args.image.as_ref().map(|_| Self::File)].into_iter().flatten()
    }

    /// Makes a disk of `bytes` bytes for guest `n` of a machine.
    pub fn image(self, bytes: u64, files: Option<Files<'_>>, n: usize) -> Result<Image> {
        let Some(Files { first, made }) = files.filter(|_| self == Self::File) else {
            return Ok(Image { params: format!("ram:{bytes}"), file: None });
        };
        let first = std::path::absolute(first)?;
        let path = match made + n {
            0 => first,
            n => PathBuf::from(format!("{}.{n}", first.display())),
        };
        let made = OpenOptions::new().write(true).create_new(true).open(&path);
        let made = made.map_err(|e| format!("--image: cannot make {}: {e}", path.display()))?;
        let image = Image { params: path.display().to_string(), file: Some(path) };
        made.set_len(bytes).map_err(|e| format!("--image: {}: {e}", image.params))?;
        Ok(image)
    }
}

/// A disk's image; a file is removed on drop.
pub struct Image {
    params: String,
    file: Option<PathBuf>,
}

impl Image {
    /// Returns the value of `params` by which the toolstack names the image.
    pub fn params(&self) -> &str {
        &self.params
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = std::fs::remove_file(file); // somebody may have removed it
        }
    }
}
