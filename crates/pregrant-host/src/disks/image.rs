//! The image that a disk's xenstore keys name, of any kind, and the facts about it that its worker
//! needs.
//!
//! ```text
//!   NamedImage  with the disk, in the core         ImageFace  with the disk's server: descriptors, words
//! ```
//! The image's identity is read again at each connect. A RAM image outlives a disconnect under the
//! same name and stays the same image.

use super::file::FileImage;
use super::ram::RamImage;
use super::spec::ImageSpec;
use super::{DiskConfig, wake_fd::WakeFd};
use pregrant::PlatformError;
use pregrant::blk::disk::{Disk, DiskFigures, Image, OpenError, Opening};
use rustix::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct Face {
    text: String,
    readable: Vec<Option<OwnedFd>>,
}

/// The facts about an image that its worker reads, shared with the image's owner.
#[derive(Clone, Default)]
pub struct ImageFace(Arc<Mutex<Face>>);

impl ImageFace {
    fn inside(&self) -> MutexGuard<'_, Face> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Describes the open image and how it is opened. The text is empty if no image is open.
    pub fn describe(&self) -> String {
        self.inside().text.clone()
    }

    /// Returns, for each queue, the descriptor that becomes readable when transfers have completed.
    /// It is returned once each time the image is opened. None: transfers complete as soon as they
    /// are submitted.
    pub fn take_readable(&self) -> Vec<Option<OwnedFd>> {
        std::mem::take(&mut self.inside().readable)
    }
}

enum Kind {
    Ram(RamImage),
    File(Box<FileImage>),
}

/// The image that a disk's keys name.
pub struct NamedImage {
    config: DiskConfig,
    /// The image that was opened last, and the specification that names it.
    named: Option<(ImageSpec, Kind)>,
    face: ImageFace,
}

impl NamedImage {
    /// Creates a disk without an image.
    pub fn new(config: DiskConfig) -> Self {
        Self { config, named: None, face: ImageFace::default() }
    }

    /// Returns the facts about the image that the worker which serves the disk reads.
    pub fn face(&self) -> &ImageFace {
        &self.face
    }

    fn forget_ways(&self, text: String) {
        *self.face.inside() = Face { text, readable: Vec::new() };
    }
}

impl Image for NamedImage {
    fn open(&mut self, how: &Opening) -> Result<DiskFigures, OpenError> {
        self.forget_ways(String::new());
        let Some(params) = &how.params else {
            return Err(OpenError::Failed(
                "the back's directory has no key `params`, or an empty one, so the disk has no image; the toolstack, or who writes \
                 the directory by hand, must name one"
                    .into(),
            ));
        };
        let spec: ImageSpec = params.parse().map_err(|e| OpenError::Failed(format!("{e}")))?;
        let named = match self.named.take() {
            Some((was, kind)) if was == spec => (was, kind),
            _ => {
                let kind = match &spec {
                    ImageSpec::Ram(bytes) => Kind::Ram(RamImage::new(*bytes)),
                    ImageSpec::Path(path) => Kind::File(Box::new(FileImage::new(path, self.config))),
                };
                (spec, kind)
            }
        };
        let (spec, kind) = self.named.insert(named);
        let (figures, text) = match kind {
            Kind::Ram(ram) => (ram.open(how)?, spec.to_string()),
            Kind::File(file) => (file.open(how)?, file.describe().unwrap_or_default()),
        };
        self.forget_ways(text);
        Ok(figures)
    }

    fn strange(&self) -> Option<String> {
        match &self.named.as_ref()?.1 {
            Kind::Ram(_) => None,
            Kind::File(file) => file.strange(),
        }
    }

    fn identity(&self) -> Option<String> {
        match &self.named.as_ref()?.1 {
            Kind::Ram(ram) => ram.identity(),
            Kind::File(file) => file.identity(),
        }
    }

    fn ends_with_process(&self) -> bool {
        matches!(self.named, Some((_, Kind::Ram(_))))
    }

    fn sectors(&mut self) -> Option<u64> {
        match &mut self.named.as_mut()?.1 {
            Kind::Ram(_) => None,
            Kind::File(file) => {
                let sectors = file.sectors();
                // With another length, the part after the last whole sector may differ.
                self.face.inside().text = file.describe().unwrap_or_default();
                sectors
            }
        }
    }

    fn close(&mut self) {
        self.forget_ways(String::new());
        if let Some((_, Kind::File(file))) = &mut self.named {
            file.close();
        }
    }

    fn queue(&mut self) -> Result<Box<dyn Disk>, PlatformError> {
        let not_open = PlatformError { op: "to use an image that is not open", code: libc::EBADF };
        let (disk, wake) = match &mut self.named.as_mut().ok_or(not_open)?.1 {
            Kind::Ram(ram) => (ram.queue()?, None),
            Kind::File(file) => {
                let (disk, wake) = file.way()?;
                (disk, Some(wake))
            }
        };
        let another = wake.as_deref().map(WakeFd::another).transpose();
        let another = another
            .map_err(|e| PlatformError { op: "to make a descriptor for a disk", code: e.raw_os_error() })?;
        self.face.inside().readable.push(another);
        if let Some((_, Kind::File(file))) = &self.named {
            // A kernel without io_uring is noticed at the first queue.
            self.face.inside().text = file.describe().unwrap_or_default();
        }
        Ok(disk)
    }
}
