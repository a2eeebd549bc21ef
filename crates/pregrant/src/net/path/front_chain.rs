//! The paths of one direction of a front's queue, one after another: what the first does not carry goes by the next, and the
//! last carries every frame.
//!
//! ```text
//!   frames --> staging --rest--> pages        staging of 65535 bytes: nothing is left for pages
//!                                             staging of 4096: the first slot of what goes by pages
//! ```
//! Only the last one's memory has grants that end with a frame.

use super::any_front::{AnyFrontPath, with_path};
use super::copy::front::OrdinaryPages;
use super::foreign::front::ForeignPages;
use super::front::FrontPath;
use super::staging::front::StagingArea;
use crate::error::PlatformError;
use crate::net::front::regions::Regions;
use crate::platform::Platform;
use alloc::vec::Vec;

/// The chain.
pub struct FrontChain<P: Platform> {
    paths: Vec<AnyFrontPath<P>>,
}

impl<P: Platform> FrontChain<P> {
    /// Staging, where there is some, then pages; these may be missing where staging carries every frame.
    pub fn new(staging: Option<StagingArea<P>>, pages: Option<OrdinaryPages<P>>) -> Self {
        let staging = staging.map(AnyFrontPath::Staging);
        Self { paths: staging.into_iter().chain(pages.map(AnyFrontPath::Pages)).collect() }
    }

    /// Ids that have memory in all of it: as many requests can be in flight.
    pub fn ids(&self) -> u32 {
        self.paths.iter().map(AnyFrontPath::ids).min().unwrap_or(0)
    }

    /// Whether it carries every frame.
    pub fn is_whole(&self) -> bool {
        self.paths.last().is_some_and(AnyFrontPath::carries_all)
    }

    /// How many.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// The `k`-th, and those before it.
    #[inline(always)]
    pub fn split(&mut self, k: usize) -> Option<(&mut [AnyFrontPath<P>], &mut AnyFrontPath<P>)> {
        let (ahead, rest) = self.paths.split_at_mut_checked(k)?;
        Some((ahead, rest.first_mut()?))
    }

    /// All, the first one first.
    #[inline(always)]
    pub fn paths(&self) -> &[AnyFrontPath<P>] {
        &self.paths
    }

    /// What a request says of `id`: the last path's reference, and where that one has none, 0.
    #[inline(always)]
    pub fn grant(&mut self, p: &P, id: u16) -> Result<u32, PlatformError> {
        self.paths.last_mut().map_or(Ok(0), |last| with_path!(last, path => path.grant(p, id)))
    }

    /// [`FrontPath::settle`].
    #[inline(always)]
    #[must_use]
    pub fn settle(&mut self, p: &P, id: u16) -> bool {
        self.paths.last_mut().is_none_or(|last| with_path!(last, path => path.settle(p, id)))
    }

    /// The staging buffers.
    pub fn staging(&self) -> Option<&StagingArea<P>> {
        self.paths.iter().find_map(|path| match path {
            AnyFrontPath::Staging(area) => Some(area),
            AnyFrontPath::Pages(_) | AnyFrontPath::Foreign(_) => None,
        })
    }

    /// [`StagingArea::set_first_slots`].
    pub fn set_first_slots(&mut self, both_know: bool) {
        for path in &mut self.paths {
            if let AnyFrontPath::Staging(area) = path {
                area.set_first_slots(both_know);
            }
        }
    }

    /// The pages.
    pub fn pages(&self) -> Option<&OrdinaryPages<P>> {
        self.paths.iter().find_map(|path| match path {
            AnyFrontPath::Pages(pages) => Some(pages),
            AnyFrontPath::Foreign(frames) => Some(frames.pages()),
            AnyFrontPath::Staging(_) => None,
        })
    }

    /// Does without staging, which the back did not accept.
    pub fn give_up_staging(&mut self, p: &P, regions: &mut Regions<P>) {
        let paths = core::mem::take(&mut self.paths);
        let (staging, rest) = paths.into_iter().partition(|path| matches!(path, AnyFrontPath::Staging(_)));
        self.paths = rest;
        let staging: Vec<_> = staging;
        staging.into_iter().for_each(|path| path.release(p, regions));
    }

    /// The back has mapped all of this domain: its pages are named by their frames, with `mark` beside. Ordinary pages they stay where
    /// they have no numbers.
    pub fn name_frames(&mut self, p: &P, mark: u32) {
        if let Some(AnyFrontPath::Pages(pages)) =
            self.paths.pop_if(|path| matches!(path, AnyFrontPath::Pages(_)))
        {
            self.paths.push(match ForeignPages::over(p, pages, mark) {
                Ok(frames) => AnyFrontPath::Foreign(frames),
                Err(pages) => AnyFrontPath::Pages(pages),
            });
        }
    }

    /// Whether its pages are named by their frames.
    pub fn names_frames(&self) -> bool {
        self.paths.iter().any(|path| matches!(path, AnyFrontPath::Foreign(_)))
    }

    /// What carries the rest.
    pub fn append(&mut self, pages: OrdinaryPages<P>) {
        self.paths.push(AnyFrontPath::Pages(pages));
    }

    /// Gives the memory back.
    pub fn release(self, p: &P, regions: &mut Regions<P>) {
        self.paths.into_iter().for_each(|path| path.release(p, regions));
    }

    /// Its memory, to be looked at apart.
    pub fn into_parts(self) -> (Option<StagingArea<P>>, Option<OrdinaryPages<P>>) {
        let (mut staging, mut pages) = (None, None);
        for path in self.paths {
            match path {
                AnyFrontPath::Staging(area) => staging = Some(area),
                AnyFrontPath::Pages(all) => pages = Some(all),
                AnyFrontPath::Foreign(frames) => pages = Some(frames.into_pages()),
            }
        }
        (staging, pages)
    }
}
