//! A guest and its driver domain on a machine in memory, with the two ends of one queue between
//! them: both are ours, or the front is a model.
//!
//! ```text
//!   TwoDomains --tx(way)--> TxEnds { TxFront, TxQueue }      --tx_model(way)--> TxGame { TxModel, TxQueue }
//!              --rx(way)--> RxEnds { RxFront, RxQueue }      --rx_model(way)--> RxGame { RxModel, RxQueue }
//! ```
//! Everything is set up as two drivers do it: pages granted, list pages read and validated, mapped.
//! `close` of each takes it down again; [`TwoDomains::assert_empty`] then shows that nothing is
//! left.

use crate::model_front::{RxModel, TxModel};
use pregrant::net::back::{Polled, RxQueue, SharedControl, TxQueue};
use pregrant::net::features::RxAccepts;
use pregrant::net::front::Granting;
use pregrant::net::front::regions::Granted;
use pregrant::net::front::{Regions, RxFront, TxFront};
use pregrant::net::path::copy::front::OrdinaryPages;
use pregrant::net::path::data_ring::front::DataArea;
use pregrant::net::path::data_ring::index::IndexPage;
use pregrant::net::path::staging::back::RxHeads;
use pregrant::net::path::staging::front::StagingArea;
use pregrant::net::path::staging::list::{self as staging_list, DataLen};
use pregrant::net::path::{
    AnyFlaggedPath, AnyFrontPath, AnyPath, Chain, CopyPath, DataRingPath, ForeignPath, FrontChain, MapPath,
    PathName, PersistentPath, RX_ORDER, StagedBuffers, StagingPath, TX_ORDER,
};
use pregrant::platform::local::{LocalChan, LocalDomain, LocalMap, LocalRegion, LocalXen};
use pregrant::platform::{Access, Events, GrantPool, PeerMem};
use pregrant::port::{Arena, Burst, FramePort, Offload, Offloads, Payload, Room};
use pregrant::ring::{BackRing, FrontRing, RingKind, RingPages};
use pregrant::ring::{NetRx, NetTx};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::RX_FOREIGN;
use pregrant::{DomId, GrantRef, PAGE_SIZE, PeerFault};
use std::collections::VecDeque;

pub const GUEST: DomId = DomId(5);
pub const HOST: DomId = DomId(1);
/// Number of slots of a ring of one page, and so of ids and of staging buffers of one direction.
pub const SLOTS: u32 = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Copy,
    Map,
    /// The path `persistent`, with at most this many mapped pages in each direction.
    Persistent(usize),
    /// The path `staging`, with buffers of this data length.
    Staging(u32),
    /// Like `Staging`; the head of a frame that is longer than a buffer is in a buffer, too.
    Heads(u32),
    /// The path `staging` with buffers of 4096 bytes, in which the first slot of a longer frame is,
    /// too.
    FirstSlots,
    /// The path `data-ring`, with 2^order pages.
    DataRing(u32),
    /// The path `foreign`: requests name frames of the guest's memory.
    Foreign,
}

/// The paths that need no special front, so that the model front supports them, too. Staging is
/// among them with each data length that a back offers.
pub const WAYS: [Way; 10] = [
    Way::Copy,
    Way::Map,
    Way::Persistent(256),
    Way::Persistent(20),
    Way::Staging(64),
    Way::Staging(128),
    Way::Staging(256),
    Way::Staging(2048),
    Way::Staging(4096),
    Way::Staging(65535),
];

/// The paths that only our front uses, and no front of Linux: the heads of long frames in staging
/// buffers ([`Way::Heads`]), or their first slots ([`Way::FirstSlots`]); network frames in a data
/// ring, one that is soon full and one that is not; or in pages of guest memory without grants,
/// which the back has mapped as a whole ([`Way::Foreign`]).
pub const OWN_WAYS: [Way; 6] =
    [Way::Heads(256), Way::Heads(2048), Way::FirstSlots, Way::DataRing(2), Way::DataRing(7), Way::Foreign];

/// Number of frames of a guest that can be mapped as a whole, which is enough for two queues.
pub const FRAMES: usize = 2048;

impl Way {
    /// The data length of the staging buffers, if the path has any.
    pub fn data_len(self) -> Option<DataLen> {
        match self {
            Way::Staging(len) | Way::Heads(len) => DataLen::new(len),
            Way::FirstSlots => DataLen::new(4096),
            Way::Copy | Way::Map | Way::Persistent(_) | Way::DataRing(_) | Way::Foreign => None,
        }
    }

    /// Whether staging carries every frame, so that ordinary pages are never needed.
    pub fn copy_only(self) -> bool {
        matches!(self, Way::Staging(65535))
    }
}

/// A machine with a guest and its driver domain.
pub struct TwoDomains {
    pub xen: LocalXen,
    pub guest: LocalDomain,
    pub host: LocalDomain,
}

/// A data ring with one half: the front's side and the back's.
pub type Half = (DataArea<LocalDomain>, DataRingPath<LocalDomain>);
type Staged = (StagingArea<LocalDomain>, StagedBuffers<LocalMap>);
pub type Ring<K> = RingPages<K, LocalRegion>;

impl Default for TwoDomains {
    fn default() -> Self {
        Self::new()
    }
}

impl TwoDomains {
    pub fn new() -> Self {
        let xen = LocalXen::new();
        Self { guest: xen.domain(GUEST.0), host: xen.domain(HOST.0), xen }
    }

    /// Checks that nothing is granted, mapped or bound.
    pub fn assert_empty(&self) {
        let c = self.xen.counts();
        let left = (c.grants, c.mapped, c.channels, c.wholes);
        assert_eq!(left, (0, 0, 0, 0), "grants, mappings, channel ends, whole domains left behind");
        assert_eq!(c.maps, c.unmaps);
    }

    /// Returns an initialised ring page of the guest, and the back's mapping of it.
    pub fn ring<K: RingKind>(&self) -> (Ring<K>, RingPages<K, LocalMap>) {
        let (front, back, _) = self.ring_and_ref();
        (front, back)
    }

    /// Like [`ring`](Self::ring), but returns the grant reference of the page, too.
    fn ring_and_ref<K: RingKind>(&self) -> (Ring<K>, RingPages<K, LocalMap>, GrantRef) {
        let mut refs = [GrantRef::NONE];
        let region = self.guest.alloc(HOST, Access::ReadWrite, &mut refs).expect("a ring page");
        let front = RingPages::<K, _>::new(region);
        front.init();
        let map = self.host.map(GUEST, &refs, Access::ReadWrite).expect("the ring page is granted");
        (front, RingPages::<K, _>::new(map), refs[0])
    }

    /// Returns the two ends of an event channel: the guest's and the host's.
    pub fn channel(&self) -> (LocalChan, LocalChan) {
        let (front, port) = self.guest.offer(HOST).expect("a channel");
        let back = self.host.bind(GUEST, port).expect("the channel is offered");
        (front, back)
    }

    /// Negotiates staging buffers: the front lists them, and the back reads the list, validates it,
    /// and maps them.
    pub fn stage(&self, way: Way, acc: Access, first_id: u16) -> Option<Staged> {
        self.stage_some(way, acc, first_id, SLOTS)
    }

    /// Like `stage`, for this many buffers.
    pub fn stage_some(&self, way: Way, acc: Access, first_id: u16, n: u32) -> Option<Staged> {
        let len = way.data_len()?;
        let mut area = StagingArea::new(&self.guest, &mut Regions::new(HOST), acc, len, n, first_id)
            .expect("staging buffers");
        area.set_first_slots(way == Way::FirstSlots);
        area.set_rx_heads(matches!(way, Way::Heads(_)));
        let list = self.host.map(GUEST, area.list_refs(), Access::ReadOnly).expect("the list page");
        let entries = staging_list::read(&list, n as usize).expect("memory");
        let list = staging_list::validate(&entries, first_id, len).expect("our own list");
        let map = self.host.map(GUEST, &list.refs, acc).expect("the buffers' pages");
        let buffers =
            StagedBuffers { map, place: list.place, len: len.buffer_bytes(), copy_only: len.copy_only() };
        Some((area, buffers))
    }

    /// Negotiates a half of a data ring: the front names its pages, and the back reads the list,
    /// validates it, and maps them.
    pub fn half(&self, way: Way, acc: Access) -> Option<Half> {
        let Way::DataRing(order) = way else { return None };
        let tx = acc == Access::ReadOnly;
        let area = DataArea::new(&self.guest, &mut Regions::new(HOST), order, [tx, !tx], SLOTS);
        let area = area.expect("pages of a data ring");
        let index = self.host.map(GUEST, &[area.index_ref()], Access::ReadOnly).expect("the index page");
        let page = IndexPage::read(&index, 9).expect("our own index page");
        let [within, out] = page.validate();
        let refs =
            if tx { out } else { within }.expect("our own references").expect("the half that is wanted");
        let map = self.host.map(GUEST, &refs, acc).expect("its pages");
        let size = page.half_bytes();
        let path =
            if tx { DataRingPath::tx(map, size) } else { DataRingPath::rx(map, size).expect("memory") };
        Some((area, path))
    }

    /// Whether the guest must be mapped as a whole. Call it before the guest allocates.
    pub fn numbers_frames(&self, way: Way) -> bool {
        if way == Way::Foreign {
            self.xen.number_frames(GUEST, FRAMES);
        }
        way == Way::Foreign
    }

    /// Maps the guest's whole memory for one direction, if the path needs that.
    pub fn whole(&self, way: Way) -> Option<ForeignPath<LocalDomain>> {
        (way == Way::Foreign).then(|| {
            let [path, _] = ForeignPath::pair(&self.host, GUEST).expect("a guest with numbers");
            path
        })
    }

    fn path(way: Way, staged: Option<StagedBuffers<LocalMap>>, acc: Access) -> AnyPath<LocalDomain> {
        match (way, staged) {
            (Way::Copy | Way::DataRing(_) | Way::Foreign, _) => AnyPath::Copy(CopyPath::default()),
            (Way::Map, _) => AnyPath::Map(MapPath::default()),
            (Way::Persistent(limit), _) => {
                AnyPath::Persistent(PersistentPath::new(limit, acc).expect("memory"))
            }
            (Way::Staging(_), Some(buffers)) => AnyPath::Staging(StagingPath::new(buffers).expect("memory")),
            (Way::Heads(_), Some(buffers)) => {
                let path = StagingPath::new(buffers).expect("memory");
                AnyPath::Staging(match acc {
                    Access::ReadOnly => path.with_heads(true),
                    Access::ReadWrite => path.with_rx_heads(RxHeads::InBuffer, false),
                })
            }
            (Way::FirstSlots, Some(buffers)) => AnyPath::Staging(
                StagingPath::new(buffers).expect("memory").with_rx_heads(RxHeads::InPage, true),
            ),
            (Way::Staging(_) | Way::Heads(_) | Way::FirstSlots, None) => panic!("staging without buffers"),
        }
    }

    pub fn ordinary(&self, way: Way, acc: Access, granting: Granting) -> Option<OrdinaryPages<LocalDomain>> {
        if way.copy_only() {
            // every slot is staged, so no ordinary page is needed: shown by having none
            return None;
        }
        let granting = if matches!(way, Way::Persistent(_)) { Granting::Standing } else { granting };
        Some(self.some_pages(SLOTS, acc, granting))
    }

    pub fn some_pages(&self, n: u32, acc: Access, granting: Granting) -> OrdinaryPages<LocalDomain> {
        OrdinaryPages::new(&self.guest, &mut Regions::new(HOST), acc, n, granting).expect("ordinary pages")
    }

    /// Connects our front and our back for TX; the rings' indices start at `start`.
    pub fn tx(&self, way: Way, granting: Granting, start: u32) -> TxEnds {
        let by_frames = self.numbers_frames(way);
        let (front_ring, back_ring) = self.ring::<NetTx>();
        let (front_chan, back_chan) = self.channel();
        let front_ring = FrontRing::starting_at(front_ring, start);
        let (area, buffers) = self.stage(way, Access::ReadOnly, 0).unzip();
        let chain = FrontChain::new(area, self.ordinary(way, Access::ReadOnly, granting));
        let front = TxFront::new(&self.guest, front_ring, chain).expect("memory");
        let (ring, _) = BackRing::attach(back_ring, None).expect("a fresh ring");
        let (area, half) = self.half(way, Access::ReadOnly).unzip();
        let (index, mut front) = (area.map(|area| (area.index, area.out)), front);
        let index = index.map(|(index, out)| {
            out.into_iter().for_each(|out| front.chain_mut().insert(AnyFrontPath::DataRing(out)));
            index
        });
        if by_frames {
            front.chain_mut().name_frames(&self.guest, 0);
            assert!(front.chain().has(PathName::Foreign));
        }
        let (half, whole) = (half.map(AnyPath::DataRing), self.whole(way).map(AnyPath::Foreign));
        let paths = [Self::path(way, buffers, Access::ReadOnly)].into_iter().chain(half).chain(whole);
        let back = TxQueue::new(ring, Chain::new(TX_ORDER, paths)).expect("memory");
        TxEnds { front, back, front_chan, back_chan, index }
    }

    /// Connects our front and our back for RX. With `after_tx` the ids of its staging buffers
    /// follow those of a list for TX.
    pub fn rx(&self, way: Way, granting: Granting, start: u32, after_tx: bool) -> RxEnds {
        let by_frames = self.numbers_frames(way);
        let (front_ring, back_ring) = self.ring::<NetRx>();
        let (front_chan, back_chan) = self.channel();
        let front_ring = FrontRing::starting_at(front_ring, start);
        let first_id = if after_tx { SLOTS as u16 } else { 0 };
        let (area, buffers) = self.stage(way, Access::ReadWrite, first_id).unzip();
        let chain = FrontChain::new(area, self.ordinary(way, Access::ReadWrite, granting));
        let front = RxFront::new(&self.guest, front_ring, chain, 1).expect("memory");
        let (ring, _) = BackRing::attach(back_ring, None).expect("a fresh ring");
        let (area, half) = self.half(way, Access::ReadWrite).unzip();
        let (index, mut front) = (area.map(|area| (area.index, area.within)), front);
        let index = index.map(|(index, within)| {
            let within = within.map(AnyFlaggedPath::DataRing);
            within.into_iter().for_each(|within| front.chain_mut().insert_flagged(within));
            index
        });
        if by_frames {
            front.chain_mut().name_frames(&self.guest, RX_FOREIGN);
            assert!(front.chain().has(PathName::Foreign));
        }
        let (half, whole) = (half.map(AnyPath::DataRing), self.whole(way).map(AnyPath::Foreign));
        let paths = [Self::path(way, buffers, Access::ReadWrite)].into_iter().chain(half).chain(whole);
        let back = RxQueue::new(ring, Chain::new(RX_ORDER, paths), RxAccepts::ALL).expect("memory");
        RxEnds { front, back, front_chan, back_chan, index }
    }

    /// Connects the model front and our back for TX, with `pages` granted pages that are filled
    /// with [`byte`].
    pub fn tx_model(&self, way: Way, start: u32, pages: usize) -> TxGame {
        let (area, buffers) = self.stage(way, Access::ReadOnly, 0).unzip();
        self.tx_model_by(Self::path(way, buffers, Access::ReadOnly).into(), area, start, pages)
    }

    /// Like [`tx_model`](Self::tx_model), with the given paths of the back.
    pub fn tx_model_by(
        &self,
        chain: Chain<LocalDomain>,
        area: Option<StagingArea<LocalDomain>>,
        start: u32,
        pages: usize,
    ) -> TxGame {
        let (front_ring, back_ring) = self.ring::<NetTx>();
        let (front_chan, back_chan) = self.channel();
        let ring_memory = front_ring.into_pages();
        let model = TxModel::starting_at(RingPages::<NetTx, _>::new(ring_memory.clone()), start);
        let mut refs = vec![GrantRef::NONE; pages];
        let memory = self.guest.alloc(HOST, Access::ReadOnly, &mut refs).expect("the guest's pages");
        assert!(memory.copy_in(0, &(0..memory.len()).map(byte).collect::<Vec<u8>>()));
        let (ring, _) = BackRing::attach(back_ring, None).expect("a fresh ring");
        TxGame {
            host: self.host.clone(),
            guest: self.guest.clone(),
            model,
            back: TxQueue::new(ring, chain).expect("memory"),
            chans: (front_chan, back_chan),
            ring_memory,
            memory,
            refs,
            area,
            port: TestPort::default(),
            arena: Arena::new(),
            control: SharedControl::default(),
        }
    }

    /// Connects the model front and our back for RX, with a writable page for each id.
    pub fn rx_model(&self, way: Way, start: u32, accepts: RxAccepts) -> RxGame {
        let (area, buffers) = self.stage(way, Access::ReadWrite, 0).unzip();
        self.rx_model_by(Self::path(way, buffers, Access::ReadWrite).into(), area, start, accepts)
    }

    /// Like [`rx_model`](Self::rx_model), with the given paths of the back.
    pub fn rx_model_by(
        &self,
        chain: Chain<LocalDomain>,
        area: Option<StagingArea<LocalDomain>>,
        start: u32,
        accepts: RxAccepts,
    ) -> RxGame {
        let (front_ring, back_ring, ring_ref) = self.ring_and_ref::<NetRx>();
        let (front_chan, back_chan) = self.channel();
        let ring_memory = front_ring.into_pages();
        let model = RxModel::starting_at(RingPages::<NetRx, _>::new(ring_memory.clone()), start);
        let mut refs = vec![GrantRef::NONE; SLOTS as usize];
        let memory = self.guest.alloc(HOST, Access::ReadWrite, &mut refs).expect("the guest's pages");
        let (ring, _) = BackRing::attach(back_ring, None).expect("a fresh ring");
        RxGame {
            host: self.host.clone(),
            guest: self.guest.clone(),
            model,
            back: RxQueue::new(ring, chain, accepts).expect("memory"),
            chans: (front_chan, back_chan),
            ring_memory,
            ring_ref,
            memory,
            refs,
            area,
            port: TestPort::default(),
            control: SharedControl::default(),
        }
    }
}

/// The byte at offset `at` of the model's pages. Neighbouring bytes, pages and cache lines have
/// different values.
pub fn byte(at: usize) -> u8 {
    (at ^ ((at >> 6) * 31) ^ ((at >> 12) * 101)) as u8
}

fn release_region(p: &LocalDomain, region: LocalRegion) {
    assert!(p.release(region).is_ok(), "the back still maps a page");
}

/// Releases staging buffers, which the back must have unmapped before.
fn release_area(p: &LocalDomain, area: Option<StagingArea<LocalDomain>>) {
    if let Some(area) = area {
        for granted in area.into_granted() {
            assert!(granted.release(p).is_ok(), "the back still maps a staging page");
        }
    }
}

/// Releases a data ring, if there is one; the back must have unmapped it before.
pub fn release_half(
    p: &LocalDomain,
    index: Option<Granted<LocalDomain>>,
    half: Option<Granted<LocalDomain>>,
) {
    for granted in index.into_iter().chain(half) {
        assert!(granted.release(p).is_ok(), "the back still maps a page of the data ring");
    }
}

pub fn release_front<K: RingKind>(p: &LocalDomain, (ring, chain): (Ring<K>, FrontChain<LocalDomain>)) {
    release_region(p, ring.into_pages());
    chain.give_back(&mut |granted| assert!(granted.release(p).is_ok(), "the back still uses a page"));
}

/// One TX queue with our front and our back.
pub struct TxEnds {
    pub front: TxFront<LocalDomain>,
    pub back: TxQueue<LocalDomain>,
    pub front_chan: LocalChan,
    pub back_chan: LocalChan,
    pub index: Option<Granted<LocalDomain>>,
}

impl TxEnds {
    pub fn close(self, domains: &TwoDomains) {
        drop(self.back);
        release_half(&domains.guest, self.index, None);
        release_front(&domains.guest, self.front.into_parts());
    }
}

/// One RX queue with our front and our back.
pub struct RxEnds {
    pub front: RxFront<LocalDomain>,
    pub back: RxQueue<LocalDomain>,
    pub front_chan: LocalChan,
    pub back_chan: LocalChan,
    pub index: Option<Granted<LocalDomain>>,
}

impl RxEnds {
    pub fn close(self, domains: &TwoDomains) {
        drop(self.back);
        release_half(&domains.guest, self.index, None);
        release_front(&domains.guest, self.front.into_parts());
    }
}

/// One TX queue with the model front and our back.
pub struct TxGame {
    host: LocalDomain,
    guest: LocalDomain,
    pub model: TxModel<Ring<NetTx>>,
    pub back: TxQueue<LocalDomain>,
    pub chans: (LocalChan, LocalChan),
    /// The ring's page, for a test that changes it on another thread.
    pub ring_memory: LocalRegion,
    /// The model's pages, filled with [`byte`].
    pub memory: LocalRegion,
    pub refs: Vec<GrantRef>,
    pub area: Option<StagingArea<LocalDomain>>,
    /// The port to which the back passes frames.
    pub port: TestPort,
    pub arena: Arena,
    pub control: SharedControl,
}

impl TxGame {
    pub fn run(&mut self) -> Result<(), PeerFault> {
        let chan = &self.chans.1;
        while self.back.poll(&self.host, GUEST, chan, &mut self.port, &mut self.arena, &self.control)?
            == Polled::More
        {}
        Ok(())
    }

    /// Polls once, while someone else has the lock of the control state.
    pub fn poll_locked(&mut self) -> Result<Polled, PeerFault> {
        let locked = self.control.lock();
        let chan = &self.chans.1;
        let polled = self.back.poll(&self.host, GUEST, chan, &mut self.port, &mut self.arena, &self.control);
        drop(locked);
        polled
    }

    /// The bytes of page `page` of the model's memory.
    pub fn content(&self, page: usize, offset: usize, len: usize) -> Vec<u8> {
        (page * PAGE_SIZE + offset..page * PAGE_SIZE + offset + len).map(byte).collect()
    }

    pub fn close(self) {
        drop(self.back);
        release_region(&self.guest, self.ring_memory);
        release_region(&self.guest, self.memory);
        release_area(&self.guest, self.area);
    }
}

/// One RX queue with the model front and our back.
pub struct RxGame {
    host: LocalDomain,
    guest: LocalDomain,
    pub model: RxModel<Ring<NetRx>>,
    pub back: RxQueue<LocalDomain>,
    pub chans: (LocalChan, LocalChan),
    pub ring_memory: LocalRegion,
    pub ring_ref: GrantRef,
    /// The model's pages, one for each id.
    pub memory: LocalRegion,
    pub refs: Vec<GrantRef>,
    pub area: Option<StagingArea<LocalDomain>>,
    /// The port with the frames that the back must deliver.
    pub port: TestPort,
    pub control: SharedControl,
}

impl RxGame {
    pub fn run(&mut self) -> Result<(), PeerFault> {
        let chan = &self.chans.1;
        while self.back.poll(&self.host, GUEST, chan, &mut self.port, &self.control)? == Polled::More {}
        Ok(())
    }

    pub fn close(self) {
        drop(self.back);
        release_region(&self.guest, self.ring_memory);
        release_region(&self.guest, self.memory);
        release_area(&self.guest, self.area);
    }
}

/// A frame with its offload.
pub type Frame = (Vec<u8>, Offload);

/// A frame port that keeps the frames that it gets in `took`, and returns those of `gives`.
#[derive(Default)]
pub struct TestPort {
    pub took: Vec<Frame>,
    pub gives: VecDeque<Frame>,
    /// True if the port accepts zero-copy payload, which it copies itself.
    pub lent: bool,
    pub full: bool,
}

impl FramePort for TestPort {
    fn room(&mut self) -> Room {
        if self.full { Room::Later(7) } else { Room::Now }
    }
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn payload(&self) -> Payload {
        if self.lent { Payload::ZeroCopy } else { Payload::Private }
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        self.took.extend(frames.iter().map(|(bytes, offload)| (bytes.to_vec(), offload)));
        frames.frames.len()
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let mut n = 0;
        while into.has_room()
            && let Some((bytes, offload)) = self.gives.pop_front()
        {
            assert!(into.push(&bytes, offload));
            n += 1;
        }
        n
    }
}
