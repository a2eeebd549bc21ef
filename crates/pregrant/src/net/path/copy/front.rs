//! Ordinary pages as a path at the front: they carry the frames that no other path does.

pub use super::pages::OrdinaryPages;

use crate::error::PlatformError;
use crate::net::front::regions::{Granted, Region};
use crate::net::path::{FrontPath, PathName};
use crate::platform::Platform;
use crate::units::PAGE_SIZE;
use alloc::vec;
use alloc::vec::Vec;

impl<P: Platform> FrontPath<P> for OrdinaryPages<P> {
    const NAME: PathName = PathName::Copy;
    const LENDS: bool = true;

    fn ids(&self) -> u32 {
        self.count
    }
    #[inline(always)]
    fn slot_bytes(&self) -> usize {
        PAGE_SIZE
    }
    #[inline(always)]
    fn carries_all(&self) -> bool {
        true
    }
    #[inline(always)]
    fn bytes(&self) -> &Region<P> {
        self.granted.bytes()
    }
    #[inline(always)]
    fn start(&self, id: u16) -> usize {
        usize::from(id) * PAGE_SIZE
    }
    #[inline(always)]
    fn grant(&mut self, p: &P, id: u16) -> Result<u32, PlatformError> {
        Ok(self.granted.grant(p, usize::from(id))?.0)
    }
    #[inline(always)]
    fn settle(&mut self, p: &P, id: u16) -> bool {
        self.granted.settle(p, usize::from(id))
    }
    #[inline(always)]
    fn pages(&self) -> Option<&OrdinaryPages<P>> {
        Some(self)
    }
    fn into_pages(self) -> Result<OrdinaryPages<P>, Self> {
        Ok(self)
    }
    fn into_memory(self) -> Vec<Granted<P>> {
        vec![self.granted]
    }
}
