//! The paths of one direction of a front's queue, one after another: what the first does not carry
//! goes by the next, and the last carries every frame.
//!
//! ```text
//!   frames --> staging --rest--> data ring, TX --rest--> pages       staging of 65535 bytes: nothing is left for the others
//!                                                                    staging of 4096: the first slot of what goes by pages
//!   RX: responses that name it by their flags --> data ring, pages of the back's
//! ```
//! Only the last one's memory has grants that end with a frame.

use super::any_front::{AnyFrontPath, AnyNamedPath, with_path};
use super::copy::front::OrdinaryPages;
use super::foreign::front::ForeignPages;
use super::front::FrontPath;
use super::name::PathName;
use super::staging::front::StagingArea;
use crate::error::PlatformError;
use crate::net::front::regions::{Granted, Regions};
use crate::platform::Platform;
use crate::wire::netif::RXF_DATA_RING;
use alloc::vec::Vec;

/// The chain.
pub struct FrontChain<P: Platform> {
    paths: Vec<AnyFrontPath<P>>,
    /// TX: the path before the last keeps account of its ids.
    accounts: bool,
    named: Vec<AnyNamedPath<P>>,
}

impl<P: Platform> FrontChain<P> {
    /// Staging, where there is some, then pages; these may be missing where staging carries every
    /// frame.
    pub fn new(staging: Option<StagingArea<P>>, pages: Option<OrdinaryPages<P>>) -> Self {
        let mut chain = Self { paths: Vec::new(), accounts: false, named: Vec::new() };
        let staging = staging.map(AnyFrontPath::Staging);
        staging.into_iter().chain(pages.map(AnyFrontPath::Pages)).for_each(|path| chain.insert(path));
        chain
    }

    /// One more path: before the one that carries every frame, or as that one.
    pub fn insert(&mut self, path: AnyFrontPath<P>) {
        let whole = self.paths.iter().position(AnyFrontPath::carries_all);
        let at = whole.filter(|_| !path.carries_all()).unwrap_or(self.paths.len());
        self.paths.insert(at, path);
        self.arranged();
    }

    fn arranged(&mut self) {
        self.accounts = matches!(&self.paths[..], [.., AnyFrontPath::DataRing(_), _]);
    }

    /// RX: memory that responses name by their flags.
    pub fn insert_named(&mut self, path: AnyNamedPath<P>) {
        self.named.push(path);
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

    /// The request of `id` is answered: [`FrontPath::answered`] of a path that keeps account of it,
    /// [`FrontPath::settle`] of the last.
    #[inline(always)]
    #[must_use]
    pub fn settle(&mut self, p: &P, id: u16) -> bool {
        if self.accounts
            && let [.., ring, _] = &mut self.paths[..]
        {
            with_path!(ring, path => path.answered(id));
        }
        self.paths.last_mut().is_none_or(|last| with_path!(last, path => path.settle(p, id)))
    }

    /// [`FrontPath::all_answered`] of that path.
    #[inline(always)]
    pub fn all_settled(&mut self) {
        if self.accounts
            && let [.., ring, _] = &mut self.paths[..]
        {
            with_path!(ring, path => path.all_answered());
        }
    }

    /// The flags by which a response with these names memory; 0: its frame is in its slot's. Those
    /// of a data ring count whether there is one or not.
    #[inline(always)]
    pub fn names(&self, flags: u16) -> u16 {
        if flags & RXF_DATA_RING != 0 {
            return RXF_DATA_RING;
        }
        flags & self.named.iter().fold(0, |all, path| all | path.flags())
    }

    /// The memory that is named so. None: there is no such.
    #[inline(always)]
    pub fn named_by(&self, name: u16) -> Option<&AnyNamedPath<P>> {
        self.named.iter().find(|path| path.flags() & name != 0)
    }

    /// The same, to receive from.
    #[inline(always)]
    pub fn named_by_mut(&mut self, name: u16) -> Option<&mut AnyNamedPath<P>> {
        self.named.iter_mut().find(|path| path.flags() & name != 0)
    }

    /// Whether frames come by one that [fetches](super::NamedPath::FETCHES) them.
    #[inline(always)]
    pub fn fetches(&self) -> bool {
        self.named.iter().any(AnyNamedPath::fetches)
    }

    /// All memory that responses name.
    #[inline(always)]
    pub fn named_mut(&mut self) -> &mut [AnyNamedPath<P>] {
        &mut self.named
    }

    /// Whether frames can go by this path.
    pub fn has(&self, name: PathName) -> bool {
        self.paths.iter().any(|path| path.name() == name) || self.named.iter().any(|path| path.name() == name)
    }

    /// Does without this path, which the back did not accept.
    pub fn give_up(&mut self, name: PathName, p: &P, regions: &mut Regions<P>) {
        let (paths, rest) =
            core::mem::take(&mut self.paths).into_iter().partition(|path| path.name() == name);
        let (named, others) =
            core::mem::take(&mut self.named).into_iter().partition(|path| path.name() == name);
        (self.paths, self.named) = (rest, others);
        self.arranged();
        Self { paths, accounts: false, named }.release(p, regions);
    }

    /// Does without all memory that responses name.
    pub fn give_up_named(&mut self, p: &P, regions: &mut Regions<P>) {
        let named = core::mem::take(&mut self.named);
        Self { paths: Vec::new(), accounts: false, named }.release(p, regions);
    }

    /// The most bytes of a path that may be full that were in use at a time.
    pub fn most(&self) -> u64 {
        self.paths.iter().map(AnyFrontPath::most).sum()
    }

    /// The staging buffers.
    pub fn staging(&self) -> Option<&StagingArea<P>> {
        self.paths.iter().find_map(|path| match path {
            AnyFrontPath::Staging(area) => Some(area),
            _ => None,
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
            _ => None,
        })
    }

    /// The back has mapped all of this domain: its pages are named by their frames, with `mark`
    /// beside. Ordinary pages they stay where they have no numbers.
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

    /// Gives the memory back.
    pub fn release(self, p: &P, regions: &mut Regions<P>) {
        self.into_memory().for_each(|granted| regions.put(p, granted));
    }

    /// Its pages, to be given back.
    pub fn into_memory(self) -> impl Iterator<Item = Granted<P>> {
        let paths = self.paths.into_iter().flat_map(AnyFrontPath::into_memory);
        paths.chain(self.named.into_iter().flat_map(AnyNamedPath::into_memory))
    }

    /// Its staging buffers and its pages, to be looked at apart.
    pub fn into_parts(self) -> (Option<StagingArea<P>>, Option<OrdinaryPages<P>>) {
        let (mut staging, mut pages) = (None, None);
        for path in self.paths {
            match path {
                AnyFrontPath::Staging(area) => staging = Some(area),
                AnyFrontPath::Pages(all) => pages = Some(all),
                AnyFrontPath::Foreign(frames) => pages = Some(frames.into_pages()),
                AnyFrontPath::DataRing(_) => {}
            }
        }
        (staging, pages)
    }
}
