//! One vif at the back: all that is specific to a vif, besides the handshake of any device
//! ([`Back`]).
//!
//! ```text
//!   offer       features of this back                                                       net/features.rs
//!   connect     the front's keys --> paths accept --> rings, channels (`connect`) --> queues live
//!   poll_tx/rx  one batch of a queue, both ways                                              the data path
//!   turn        the owner's work between batches: links, rates, control requests            `control_turn`
//!   disconnect  nothing stays mapped or bound
//! ```
//! What a front may do: write any keys and any indices, disappear. An invalid list is refused, and
//! its queue works with ordinary grants; invalid rings close the vif.

mod connect;
mod control_turn;

pub use crate::xenbus::back::HOTPLUG_STATUS;
pub use control_turn::RATE;

use super::control_page::ControlPage;
use super::control_ring::CtrlRing;
use super::queue::QueueShare;
use super::shared_control::SharedControl;
use super::stall::Patience;
use super::{BackQueue, Interrupted, Polled, Rate};
use crate::error::PeerFault;
use crate::grants::MappedStats;
use crate::net::features::RxAccepts;
use crate::net::features::{BackFeatures, REQUEST_MULTICAST, of_back_connection, requests_multicast};
use crate::net::one_slot::OneSlot;
#[cfg(feature = "research")]
use crate::net::path::LentRegions;
use crate::net::path::acceptance::Refusals;
use crate::net::path::{BufferNames, GrefRequests, PathConfig, PathName, Refusal};
use crate::net::stats::DirStats;
use crate::platform::Platform;
use crate::port::{Arena, FramePort, Offloads};
use crate::units::DomId;
use crate::xenbus::Class;
use crate::xenbus::back::{
    Back, BackDevice, Changed, ClassRules, Connect, Connection, Drained, PageShare, PageUse,
};
use crate::xenbus::bus::DeviceBus;
use crate::xenbus::connect_error::ConnectError;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// What a back offers to vifs' fronts, and how it serves them.
#[derive(Clone, Debug, Default)]
pub struct VifConfig {
    /// The features that are advertised.
    pub features: BackFeatures,
    /// The configuration of each path.
    pub paths: PathConfig,
    /// How long frames wait for the front's RX slots, and how long the front may post none before
    /// its link goes down.
    pub patience: Patience,
}

/// One vif of domain `of`, with its handshake.
pub type BackVif<P> = Back<Vif<P>>;

/// A vif without its handshake.
pub struct Vif<P: Platform> {
    of: DomId,
    config: VifConfig,
    /// The features that a predecessor advertised, if this connection is one of its; None: those of
    /// `config`.
    left: Option<BackFeatures>,
    /// The vif's queues; empty while they are [with their workers](Vif::hand_out_queues).
    queues: Vec<BackQueue<P>>,
    /// The state shared with each queue, wherever it runs; empty while the vif is not connected.
    shares: Vec<Arc<QueueShare>>,
    /// What the front set by control requests.
    control: Arc<SharedControl>,
    ctrl: Option<CtrlRing<P>>,
    /// Requests about the queues' tables of mapped pages. None: the front cannot make them.
    grefs: Option<GrefRequests<P>>,
    /// Exported pages of queues that now use another path.
    #[cfg(feature = "research")]
    lent: LentRegions<P>,
    /// The frames that the front accepts, as of the last connect.
    accepts: RxAccepts,
    /// Why lists were refused, for the log. The vif works without them.
    refused: Refusals,
    /// Largest number of pages that all of the vif's queues together may keep mapped.
    allowed: usize,
    /// Largest number of pages that the vif may use until it closes without releasing them.
    lasting: usize,
    /// The toolstack's limit for the guest.
    rate: Option<Rate>,
    /// The text of an invalid `rate`.
    bad_rate: Option<String>,
    /// Number of stalls in former connections.
    past_stalls: u64,
    /// The link's state as the owner knows it.
    link: bool,
}

impl<P: Platform> Back<Vif<P>> {
    /// Creates the back's end of a vif that the toolstack created. Nothing is written to xenstore
    /// yet.
    pub fn new(of: DomId, handle: u32, config: VifConfig) -> Self {
        let vif = Vif {
            of,
            left: None,
            config,
            queues: Vec::new(),
            shares: Vec::new(),
            control: Arc::default(),
            ctrl: None,
            grefs: None,
            #[cfg(feature = "research")]
            lent: LentRegions::default(),
            accepts: RxAccepts::ALL,
            refused: Refusals::default(),
            allowed: 0,
            lasting: usize::MAX,
            rate: None,
            bad_rate: None,
            past_stalls: 0,
            link: false,
        };
        Self::around(vif, of, handle)
    }
}

impl<P: Platform> BackDevice for Vif<P> {
    type Platform = P;
    type Ports = [Box<dyn FramePort>];
    const RULES: ClassRules =
        ClassRules { front_keys: &[REQUEST_MULTICAST], own_keys: &[RATE], ..ClassRules::new(Class::VIF) };

    fn offer<B: DeviceBus>(&mut self, bus: &mut B) -> Result<(), B::Error> {
        let VifConfig { features, paths, .. } = &mut self.config;
        // These are offered where the operator allows them, and only there; the others' offers are
        // the owner's.
        let PathConfig {
            fallback: _,
            thresholds: _,
            staging,
            foreign,
            guest_copy,
            gref_mapping: _,
            persistent: _,
        } = *paths;
        features.staging.rx_heads = staging.heads;
        features.foreign = foreign;
        features.guest_copy = guest_copy;
        let pairs = self.config.features.pairs_in_memory().map_err(|e| bus.refused(e))?;
        bus.publish(&pairs, of_back_connection)
    }

    fn connect<B: DeviceBus>(
        &mut self,
        p: &P,
        bus: &mut B,
        with: Connect<'_>,
    ) -> Result<(), ConnectError<B::Error>> {
        self.lasting = with.lasting;
        let connected = self.connect_queues(p, bus, with);
        // The owner's close releases a complete connection; a partial one is released here.
        if connected.is_err() && self.shares.is_empty() {
            self.take_pages_back(p);
            self.queues.clear();
        }
        connected
    }

    fn connection(&self) -> Connection {
        Connection::of_queues(self.queues.len(), self.shares.len())
    }

    fn drain(&mut self, p: &P, ports: &mut [Box<dyn FramePort>]) -> Drained {
        // It comes before the end, because frames left in exported pages are lost then.
        self.revoke_exported();
        let mut drained = Drained::default();
        for (q, port) in self.queues.iter_mut().zip(ports) {
            drained += q.deliver(p, &mut **port);
        }
        drained
    }

    fn disconnect(&mut self, p: &P) {
        self.queues.iter_mut().for_each(|q| q.retire(p));
        self.link = false;
        self.past_stalls = self.stalls();
        self.take_pages_back(p);
        self.queues.clear(); // maps are unmapped and channels closed on drop
        self.shares.clear();
        self.ctrl = None;
        self.grefs = None;
    }

    fn changed<B: DeviceBus>(&mut self, p: &P, bus: &mut B, what: Changed<'_>) -> Result<(), B::Error> {
        match what {
            // The front may switch multicast control on and off at any time
            // (`feature-dynamic-multicast-control`).
            Changed::FrontKeys if self.offered().dynamic_multicast_control => {
                let on = self.offered().multicast_control && requests_multicast(bus)?;
                self.control.lock().multicast.request(on);
            }
            Changed::Reconfigured => self.reload_headroom(p, bus)?,
            Changed::Own(RATE) => self.reload_rate(p, bus)?,
            Changed::FrontKeys | Changed::Own(_) => {}
        }
        Ok(())
    }

    fn pages(&self) -> PageUse {
        let grefs = |count: fn(&GrefRequests<P>) -> usize| self.grefs.as_ref().map_or(0, count);
        let needed = self.needed_pages();
        let allowed = if self.shares.is_empty() { 0 } else { self.allowed + grefs(GrefRequests::room) };
        let requested = self.nr_keeping() * self.config.paths.persistent + grefs(GrefRequests::free);
        PageUse { needed, least: needed, single: self.single_pages(), requested, allowed }
    }

    fn allow_pages(&mut self, p: &P, PageShare { mut pages, lasting }: PageShare) {
        self.lasting = lasting;
        let most = self.config.paths.persistent;
        let nr_chains = self.nr_keeping();
        let lasting = lasting.saturating_sub(self.needed_pages());
        if let Some(grefs) = &mut self.grefs {
            // Half for each direction, if both want that many.
            let kept = (nr_chains * most).min(pages.div_ceil(2));
            grefs.set_room((pages - kept).min(lasting));
            pages -= grefs.room();
        }
        let (mut left, mut chains) = (pages, nr_chains);
        for share in &self.shares {
            // The last ones get the remainder.
            let each = share.keeps.map(|keeps| {
                let each = if keeps { left.checked_div(chains).unwrap_or(0).min(most) } else { 0 };
                (left, chains) = (left - each, chains - usize::from(keeps));
                each
            });
            share.set_page_limits(each);
        }
        self.queues.iter_mut().for_each(|q| q.apply_config(p));
        self.allowed = pages - left;
    }
}

/// Handles pages that the vif's paths export to the guest, as `guest-copy` does.
#[cfg(feature = "research")]
impl<P: Platform> Vif<P> {
    /// Moves frames from exported pages to another path from now on. Frames in those pages can be
    /// fetched until [`take_pages_back`](Self::take_pages_back).
    fn revoke_exported(&mut self) {
        let Self { queues, lent, .. } = self;
        lent.end(queues.iter_mut().filter_map(|q| q.rx.chain_mut().take_lent()));
    }

    /// Ends the export of pages.
    fn take_pages_back(&mut self, p: &P) {
        self.revoke_exported();
        self.lent.take_back(p);
    }

    /// Tries again to release what a front held. True: the front has let go of everything.
    fn holds_nothing(&mut self, p: &P) -> bool {
        self.lent.retry(p)
    }

    /// Number of exported regions that the front has not let go of.
    pub fn held_regions(&self) -> usize {
        self.lent.held_regions()
    }

    /// Number of pages that the queues use.
    fn held_pages(&self) -> usize {
        self.lent.held_pages()
    }
}

/// Without the feature `research` no path exports pages.
#[cfg(not(feature = "research"))]
impl<P: Platform> Vif<P> {
    fn revoke_exported(&mut self) {}
    fn take_pages_back(&mut self, _p: &P) {}
    fn holds_nothing(&mut self, _p: &P) -> bool {
        true
    }
    /// Number of exported regions that the front has not let go of.
    pub fn held_regions(&self) -> usize {
        0
    }
    fn held_pages(&self) -> usize {
        0
    }
}

impl<P: Platform> Vif<P> {
    /// The features that the back of this connection advertised, which was this process or a
    /// predecessor.
    fn offered(&self) -> &BackFeatures {
        self.left.as_ref().unwrap_or(&self.config.features)
    }

    /// Number of directions of queues that keep pages mapped.
    fn nr_keeping(&self) -> usize {
        self.shares.iter().flat_map(|s| s.keeps).filter(|keeps| *keeps).count()
    }

    /// Number of pages that are mapped from connect to disconnect, or may be mapped at any moment.
    fn needed_pages(&self) -> usize {
        let rings =
            self.shares.iter().map(|s| s.needed_pages).sum::<usize>() + usize::from(self.ctrl.is_some());
        rings + self.single_pages() + self.held_pages()
    }

    /// Number of those pages that are mapped one by one.
    fn single_pages(&self) -> usize {
        self.grefs.as_ref().map_or(0, GrefRequests::pages)
    }

    /// Number of mapped pages: those that the vif [needs](PageUse::needed), and those that it keeps
    /// mapped.
    pub fn mapped_pages(&self) -> usize {
        self.needed_pages() + self.shares.iter().map(|s| s.kept_pages()).sum::<usize>()
    }

    /// Keeps what the front sets by control requests in memory that outlives this process. Call it
    /// before the first connection.
    pub fn keep_control(&mut self, page: ControlPage) {
        self.control.lock().keep(page);
    }

    /// Staging lists, halves of data rings, and exports of pages that were refused at the last
    /// connect: queue, direction, reason.
    pub fn refused_lists(&self) -> &[(usize, &'static str, Refusal)] {
        &self.refused
    }

    /// The offloads that the connected front supports; ports complete the rest.
    pub fn front_offloads(&self) -> Offloads {
        self.accepts.offloads()
    }

    /// The frames that the front accepts, as of the last connect.
    pub fn accepts(&self) -> RxAccepts {
        self.accepts
    }

    /// The largest MTU for whatever sends to the guest, if the front accepts only one slot for each
    /// frame ([`one_slot`](crate::net::one_slot)).
    pub fn mtu_limit(&self) -> Option<u32> {
        let buffers = self.shares.first().and_then(|share| share.chains[1].buffers);
        let one_slot = || OneSlot::with_buffers(buffers.map(|buffers| buffers.data_len));
        (!self.accepts.sg && !self.shares.is_empty()).then(|| one_slot().mtu())
    }

    /// Number of frames that were too long for the guest, on all queues of this connection.
    pub fn too_long(&self) -> u64 {
        self.shares.iter().map(|share| share.rx.too_long.get()).sum()
    }

    /// What the predecessor on this connection's rings had in flight.
    pub fn interrupted(&self) -> Interrupted {
        let mut sum = Interrupted::default();
        for q in &self.queues {
            match (q.tx.inherited(), q.rx.inherited()) {
                (Some(tx), Some(rx)) => {
                    sum.twice = sum.twice.saturating_add(tx.frames);
                    sum.lost = sum.lost.saturating_add(rx.frames);
                    sum.asking += u32::from(rx.asking);
                }
                _ => sum.unknown += 1,
            }
        }
        sum
    }

    /// Number of live queues, including those with workers.
    pub fn nr_queues(&self) -> usize {
        self.shares.len()
    }

    /// Returns the vif's queues, to be given to workers, in their order. Until they are
    /// [back](Self::take_back) the vif can neither close nor detach.
    pub fn hand_out_queues(&mut self) -> Vec<BackQueue<P>> {
        core::mem::take(&mut self.queues)
    }

    /// Takes all of the vif's queues back, in order.
    pub fn take_back(&mut self, queues: Vec<BackQueue<P>>) {
        self.queues = queues;
    }

    /// Moves one batch of queue `i` from the guest to `port`. On a fault call
    /// [`close`](Back::close) with its text.
    pub fn poll_tx(
        &mut self,
        p: &P,
        i: usize,
        port: &mut dyn FramePort,
        scratch: &mut Arena,
    ) -> Result<Polled, PeerFault> {
        self.queues[i].poll_tx(p, port, scratch)
    }

    /// Moves one batch of queue `i` from `port` to the guest.
    pub fn poll_rx(&mut self, p: &P, i: usize, port: &mut dyn FramePort) -> Result<Polled, PeerFault> {
        self.queues[i].poll_rx(p, port)
    }

    /// Executes some control requests: in the owner's control turn, never between frames. On a
    /// fault call [`close`](Back::close) with its text.
    pub fn poll_ctrl(&mut self, p: &P) -> Result<Polled, PeerFault> {
        // Checked first, so that a guest without requests makes no queue look for changes.
        if !self.ctrl_is_pending() {
            return Ok(Polled::Idle);
        }
        let Some(ctrl) = &mut self.ctrl else { return Ok(Polled::Idle) };
        let polled = ctrl.poll(p, self.of, &self.control, self.grefs.as_mut());
        // Queues that are here apply it at once; workers do when they are notified.
        self.queues.iter_mut().for_each(|q| q.apply_config(p));
        polled
    }

    /// Call before sleeping: asks for events of the control ring. Returns true if there is work.
    pub fn final_check_ctrl(&mut self, p: &P) -> Result<bool, PeerFault> {
        self.ctrl.as_mut().map_or(Ok(false), |ctrl| ctrl.final_check(p, self.grefs.as_ref()))
    }

    /// Called before sleeping: asks for events of both rings of queue `i` and unmasks its channels.
    /// Returns true if there is work. A fault comes with its direction.
    pub fn final_check(&mut self, p: &P, i: usize) -> Result<bool, (&'static str, PeerFault)> {
        self.queues[i].arm(p)
    }

    /// Counters of queue `i`.
    pub fn stats(&self, i: usize) -> (DirStats, DirStats) {
        (self.shares[i].tx.read(), self.shares[i].rx.read())
    }

    /// The first path of queue `i`, for TX and for RX.
    pub fn path_names(&self, i: usize) -> (&'static str, &'static str) {
        let first = |dir| self.shown(i, dir).into_iter().flatten().next().unwrap_or(PathName::Copy.name());
        (first(0), first(1))
    }

    /// The paths of queue `i` in this direction (0: TX, 1: RX), as they are
    /// [shown](crate::net::path::ChainNames::shown): gref mappings only while the front has pages
    /// mapped.
    pub fn chain(&self, i: usize, dir: usize) -> Vec<&'static str> {
        self.shown(i, dir).into_iter().flatten().collect()
    }

    fn shown(&self, i: usize, dir: usize) -> Option<impl Iterator<Item = &'static str>> {
        let mapped = self.gref_pages(i).get(dir).is_some_and(|pages| *pages > 0);
        Some(self.shares.get(i)?.chains.get(dir)?.shown(mapped))
    }

    /// For TX and RX: bytes of a frame that fit a staging buffer of queue `i`. None: there are no
    /// buffers.
    pub fn data_lens(&self, i: usize) -> [Option<u32>; 2] {
        self.buffers(i).map(|buffers| Some(buffers?.data_len))
    }

    /// For TX and RX: the staging buffers of queue `i`.
    pub fn buffers(&self, i: usize) -> [Option<BufferNames>; 2] {
        [0, 1].map(|dir| self.shares[i].chains[dir].buffers)
    }

    /// For TX and RX: counts of the pages that queue `i` keeps mapped. None: no pages are kept.
    pub fn kept(&self, i: usize) -> [Option<MappedStats>; 2] {
        self.shares[i].kept()
    }

    /// Counts of the table of pages that queue `i`'s front asked to map: how many, and how many
    /// were refused. None: there is no table.
    pub fn gref_table(&self, i: usize) -> Option<MappedStats> {
        self.grefs.as_ref()?.figures(i)
    }

    /// Number of pages over all queues that the front asked to map, if none of its requests is in
    /// progress. None: a request is in progress.
    pub fn settled_gref_pages(&self) -> Option<usize> {
        let grefs = self.grefs.as_ref()?;
        (grefs.unanswered().next().is_none()).then(|| grefs.pages())
    }

    /// Number of pages of queue `i` that the front asked to map, for TX and for RX.
    pub fn gref_pages(&self, i: usize) -> [usize; 2] {
        self.grefs.as_ref().map_or([0; 2], |grefs| grefs.pages_in_use(i))
    }
}
