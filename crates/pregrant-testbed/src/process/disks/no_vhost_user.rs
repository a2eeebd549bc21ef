//! Replaces [`vhost_user`](super::vhost_user) in programs that are built without the crate `blkio`.
//! Its start fails with a text that says so.

use super::disks_command::Load;
use super::load::Played;
use crate::process::Result;
use std::convert::Infallible;
use std::path::Path;

pub struct VhostUserDisk(Infallible);

impl VhostUserDisk {
    pub fn connect(_socket: &Path, _depth: usize, _size: usize) -> Result<Self> {
        Err("this program has no client: `cargo demo` builds it without, and the crate blkio needs glibc; build it by \
             `cargo build --release -p pregrant-lab`"
            .into())
    }

    pub fn play(&mut self, _load: &Load, _core: Option<usize>, _seconds: f64) -> Result<Played> {
        match self.0 {}
    }
}
