//! The paths of one direction of a front's queue, in their order: each gets the frames that the one
//! before did not carry, and the last carries every frame.
//!
//! ```text
//!   frames --> staging --rest--> data ring, TX --rest--> pages       staging of 65535 bytes carries every frame; of 4096 bytes
//!                                                                    every frame without feature-sg, else the first slot of a longer one
//!   RX: responses that name memory by their flags --> data ring, pages of the back's
//! ```
//! Invariant: only the last path's memory has grants that end with a frame.

use super::any_front::{AnyFlaggedPath, AnyFrontPath};
use super::copy::front::OrdinaryPages;
use super::path_name::PathName;
use super::staging::front::StagingArea;
use crate::error::PlatformError;
use crate::net::features::BackFeatures;
use crate::net::front::regions::{Granted, OwnRing, Regions};
use crate::net::front::tx_slots::Ids;
use crate::platform::{GrantPool, Platform};
use crate::ring::RingKind;
use alloc::vec::Vec;

/// The paths of one direction of a front's queue, in the order in which they are tried.
pub struct FrontChain<P: Platform> {
    paths: Vec<AnyFrontPath<P>>,
    /// TX: the path before the last is a data ring, which keeps account of the ids of its frames.
    has_data_ring: bool,
    flagged: Vec<AnyFlaggedPath<P>>,
}

impl<P: Platform> Default for FrontChain<P> {
    fn default() -> Self {
        Self { paths: Vec::new(), has_data_ring: false, flagged: Vec::new() }
    }
}

impl<P: Platform> FrontChain<P> {
    /// Makes a chain of the staging buffers, if any, and the pages, which may be missing if staging
    /// carries every frame.
    pub fn new(staging: Option<StagingArea<P>>, pages: Option<OrdinaryPages<P>>) -> Self {
        let mut chain = Self::default();
        let staging = staging.map(AnyFrontPath::Staging);
        staging.into_iter().chain(pages.map(AnyFrontPath::Copy)).for_each(|path| chain.insert(path));
        chain
    }

    /// The staging buffers, if the chain has any.
    pub fn staging(&self) -> Option<&StagingArea<P>> {
        self.paths().iter().find_map(|path| match path {
            AnyFrontPath::Staging(area) => Some(area),
            _ => None,
        })
    }

    /// Takes the chain apart into its staging buffers and its ordinary pages.
    pub fn into_parts(self) -> (Option<StagingArea<P>>, Option<OrdinaryPages<P>>) {
        let (mut staging, mut pages) = (None, None);
        for path in self.into_paths() {
            match path {
                AnyFrontPath::Staging(area) => staging = Some(area),
                path => pages = path.into_pages().ok().or(pages),
            }
        }
        (staging, pages)
    }

    /// Adds a path. A path that carries every frame becomes the last one; any other goes before the
    /// last.
    pub fn insert(&mut self, path: AnyFrontPath<P>) {
        let whole = self.paths.iter().position(AnyFrontPath::carries_all);
        let at = whole.filter(|_| !path.carries_all()).unwrap_or(self.paths.len());
        self.paths.insert(at, path);
        self.arranged();
    }

    fn arranged(&mut self) {
        self.has_data_ring = matches!(&self.paths[..], [.., AnyFrontPath::DataRing(_), _]);
    }

    /// RX: adds memory that responses select by their flags.
    pub fn insert_flagged(&mut self, path: AnyFlaggedPath<P>) {
        self.flagged.push(path);
    }

    /// Number of ids that have memory in every path, which is the number of requests that can be in
    /// flight.
    pub fn ids(&self) -> u32 {
        self.paths.iter().map(AnyFrontPath::ids).min().unwrap_or(0)
    }

    /// TX: the number of ids for a ring of `slots` slots. It can be larger than [`ids`](Self::ids),
    /// if one path has memory for more ids and the other paths can share theirs.
    pub fn serve_ids(&mut self, slots: u32) -> Result<Ids, PlatformError> {
        let at_once = self.ids().min(slots);
        let most = self.paths.iter().map(AnyFrontPath::ids).max().unwrap_or(0);
        if most > slots && self.all_serve_ids(most)? {
            return Ok(Ids { all: most, at_once });
        }
        let all_serve = self.all_serve_ids(at_once)?;
        debug_assert!(all_serve, "each has memory for so many");
        Ok(Ids { all: at_once, at_once })
    }

    /// Shares each path's memory among `n` ids. False: some path cannot serve that many ids.
    fn all_serve_ids(&mut self, n: u32) -> Result<bool, PlatformError> {
        for path in &mut self.paths {
            if !path.serve_ids(n)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// True if the chain carries every frame.
    pub fn is_whole(&self) -> bool {
        self.paths.last().is_some_and(AnyFrontPath::carries_all)
    }

    /// True if the chain has no memory for frames that need several slots.
    pub fn of_one_slot(&self) -> bool {
        self.paths.last().is_some_and(AnyFrontPath::of_one_slot)
    }

    /// Number of paths.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// True if the chain has no path.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// The `k`-th path, and those before it.
    #[inline(always)]
    pub fn split(&mut self, k: usize) -> Option<(&mut [AnyFrontPath<P>], &mut AnyFrontPath<P>)> {
        let (ahead, rest) = self.paths.split_at_mut_checked(k)?;
        Some((ahead, rest.first_mut()?))
    }

    /// All paths, in order.
    #[inline(always)]
    pub fn paths(&self) -> &[AnyFrontPath<P>] {
        &self.paths
    }

    /// The path whose grant references go into the requests. None: requests have reference 0.
    #[inline(always)]
    pub fn granting(&mut self) -> Option<&mut AnyFrontPath<P>> {
        self.paths.last_mut()
    }

    /// Notes that the request of `id` was answered: the data ring frees its bytes, the last path
    /// ends its grant. Returns false if the peer still uses the memory.
    #[inline(always)]
    #[must_use]
    pub fn settle(&mut self, p: &P, id: u16) -> bool {
        if self.has_data_ring
            && let [.., AnyFrontPath::DataRing(ring), _] = &mut self.paths[..]
        {
            ring.note_answer(id);
        }
        self.paths.last_mut().is_none_or(|last| last.settle(p, id))
    }

    /// Called when no more answers are waiting, after some were settled.
    #[inline(always)]
    pub fn all_settled(&mut self) {
        if self.has_data_ring
            && let [.., AnyFrontPath::DataRing(ring), _] = &mut self.paths[..]
        {
            ring.free_places();
        }
    }

    /// Those of `flags` by which a response names memory; 0: the frame is in the memory of its
    /// slot. Some flags [count](AnyFlaggedPath::ALWAYS) whether the queue has such memory or not.
    #[inline(always)]
    pub fn names(&self, flags: u16) -> u16 {
        let always = flags & AnyFlaggedPath::<P>::ALWAYS;
        if always != 0 {
            return always;
        }
        flags & self.flagged.iter().fold(0, |all, path| all | path.flags())
    }

    /// The memory that a response with the flags `name` names. None: the queue has no such memory.
    #[inline(always)]
    pub fn flagged_by(&self, name: u16) -> Option<&AnyFlaggedPath<P>> {
        self.flagged.iter().find(|path| path.flags() & name != 0)
    }

    /// Like [`flagged_by`](Self::flagged_by), mutable.
    #[inline(always)]
    pub fn flagged_by_mut(&mut self, name: u16) -> Option<&mut AnyFlaggedPath<P>> {
        self.flagged.iter_mut().find(|path| path.flags() & name != 0)
    }

    /// Whether frames come by a path that [fetches](AnyFlaggedPath::fetches) them.
    #[inline(always)]
    pub fn fetches(&self) -> bool {
        self.flagged.iter().any(AnyFlaggedPath::fetches)
    }

    /// All memory that responses name.
    #[inline(always)]
    pub fn flagged_mut(&mut self) -> &mut [AnyFlaggedPath<P>] {
        &mut self.flagged
    }

    /// Whether frames can go by this path.
    pub fn has(&self, name: PathName) -> bool {
        self.paths.iter().any(|path| path.name() == name)
            || self.flagged.iter().any(|path| path.name() == name)
    }

    /// Gives up this path, which the back did not accept. The path's ordinary pages are used
    /// without it.
    pub fn give_up(&mut self, name: PathName, p: &P, regions: &mut Regions<P>) {
        let (paths, rest): (Vec<_>, _) =
            core::mem::take(&mut self.paths).into_iter().partition(|path| path.name() == name);
        let (flagged, others) =
            core::mem::take(&mut self.flagged).into_iter().partition(|path| path.name() == name);
        (self.paths, self.flagged) = (rest, others);
        let mut given_up = Self { paths: Vec::new(), has_data_ring: false, flagged };
        for path in paths {
            match path.into_pages() {
                Ok(pages) => self.insert(AnyFrontPath::Copy(pages)),
                Err(path) => given_up.paths.push(path),
            }
        }
        self.arranged();
        given_up.release(p, regions);
    }

    /// Gives up all memory that responses name.
    pub fn give_up_named(&mut self, p: &P, regions: &mut Regions<P>) {
        let flagged = core::mem::take(&mut self.flagged);
        Self { paths: Vec::new(), has_data_ring: false, flagged }.release(p, regions);
    }

    /// The largest number of bytes in use at a time, of a path whose memory can be full.
    pub fn most(&self) -> u64 {
        self.paths.iter().map(AnyFrontPath::most).sum()
    }

    /// Calls [`AnyFrontPath::is_offered`] of this path's memory. True if there is no such memory.
    pub fn is_offered(&self, name: PathName, back: &BackFeatures) -> bool {
        self.paths.iter().filter(|path| path.name() == name).all(|path| path.is_offered(&back.staging))
    }

    /// Called when the queue goes live with a back that offered `back`.
    pub fn go_live(&mut self, back: &BackFeatures) {
        self.paths.iter_mut().for_each(|path| path.go_live(&back.staging));
    }

    /// Number of buffers that stay with their slots; 0: there are none.
    pub fn buffers(&self) -> u32 {
        self.staging().map_or(0, StagingArea::entries)
    }

    /// True if there are more buffers than slots, so that each buffer rests before it is used
    /// again.
    pub fn buffers_rest(&self) -> bool {
        self.staging().is_some_and(StagingArea::buffers_rest)
    }

    /// Number of RX buffers that TX may send as they are; 0: none.
    pub fn sent_on(&self) -> u32 {
        self.staging().filter(|area| area.is_sent_on()).map_or(0, StagingArea::entries)
    }

    /// The ordinary pages, if the chain has any.
    #[inline]
    pub fn pages(&self) -> Option<&OrdinaryPages<P>> {
        self.paths.iter().find_map(AnyFrontPath::pages)
    }

    /// The ordinary pages, so that a caller can add or remove some.
    pub fn pages_mut(&mut self) -> Option<&mut OrdinaryPages<P>> {
        self.paths.iter_mut().find_map(AnyFrontPath::pages_mut)
    }

    /// Takes the ordinary pages out of the chain, to be put into another path.
    pub fn take_pages(&mut self) -> Option<OrdinaryPages<P>> {
        let (of_pages, others): (Vec<_>, _) =
            core::mem::take(&mut self.paths).into_iter().partition(|path| path.pages().is_some());
        self.paths = others;
        debug_assert!(of_pages.len() < 2, "a chain has pages in one of its paths");
        of_pages.into_iter().next()?.into_pages().ok()
    }

    /// Returns the chain's memory to `regions`.
    pub fn release(self, p: &P, regions: &mut Regions<P>) {
        self.give_back(&mut |granted| regions.put(p, granted));
    }

    /// Ends the grants of the chain's memory and of its ring, for a queue that could not be made. A
    /// page that the back uses already stays granted, and is never used again.
    #[cold]
    pub(crate) fn end_with<K: RingKind>(self, p: &P, ring: OwnRing<K, P>) {
        let _ = p.grants().release(ring.into_pages());
        self.give_back(&mut |granted| {
            let _ = granted.release(p);
        });
    }

    /// Takes the chain apart and returns its granted pages.
    #[inline(never)]
    pub fn give_back(self, give: &mut dyn FnMut(Granted<P>)) {
        for path in self.paths {
            path.give_back(give);
        }
        for path in self.flagged {
            give(path.into_memory());
        }
    }

    /// Takes the chain apart into all of its paths, in order.
    pub fn into_paths(self) -> Vec<AnyFrontPath<P>> {
        self.paths
    }
}
