//! A guest that writes raw slots: the model front on a live vif.

use crate::world::{BACK, World};
use pregrant::net::features::{ChannelKeys, FrontRequest, QueueKeys, of_front_connection};
use pregrant::net::front::regions::Regions;
use pregrant::net::path::FrontPath;
use pregrant::net::path::data_ring::front::DataArea;
use pregrant::net::path::research::guest_copy::{GENERATION, REFS, generation_of};
use pregrant::net::path::staging::front::StagingArea;
use pregrant::net::path::staging::keys::{DataKeys, DataRequest, Lists};
use pregrant::net::path::staging::list::DataLen;
use pregrant::platform::{Access, CopyOp, Events, GrantPool, LocalBytes, PeerMem, Platform};
use pregrant::ring::{NetRx, NetTx, RingPages};
use pregrant::shm::SharedBytes;
use pregrant::wire::grant::GrantStatus;
use pregrant::wire::netif::{
    Extra, GSO_TYPE_TCPV4, RSP_NULL, RSP_OKAY, RX_FOREIGN, RXF_DATA_RING, RxRequest, RxResponse,
    TXF_CSUM_BLANK, TXF_DATA_RING, TXF_DATA_VALIDATED, TXF_EXTRA_INFO, TXF_FOREIGN, TXF_MORE_DATA, TxRequest,
};
use pregrant::xenbus::bus::{DeviceBus, StoreBus};
use pregrant::xenbus::{Class, Device, XenbusState};
use pregrant::xenstore::Client;
use pregrant::{GrantRef, PAGE_SIZE};
use pregrant_host::MonotonicClock;
use pregrant_host::UnixTransport;
use pregrant_host::ports::sequence;
use pregrant_loopback::{Channel, Loopback, Region};
use pregrant_testkit::model_front::{RxFrame, RxModel, Slot, TxModel};
use std::collections::VecDeque;
use std::time::Duration;

/// Pages of each ring of a guest with staging buffers, as the exponent of 2: each of its lists has
/// two pages then.
const ORDER: u32 = 2;
/// Bytes that fit a staging buffer, in the tests that have some.
const STAGED: u32 = 2048;
/// log2 of the number of pages of a data ring, so small that frames in flight wrap around, and
/// sometimes do not fit.
const DATA_RING: u32 = 6;
/// The first index of each ring: they wrap.
const START: u32 = u32::MAX - 20;
/// Flags of a large segment: numbered frames are not TCP, so a back could not blank their checksums
/// itself.
const LARGE: u16 = TXF_CSUM_BLANK | TXF_DATA_VALIDATED;

pub struct ModelGuest {
    platform: Loopback,
    xs: Client<UnixTransport>,
    device: Device,
    pub tx: TxModel<RingPages<NetTx, Region>>,
    pub rx: RxModel<RingPages<NetRx, Region>>,
    chan: Channel,
    /// A page for each id.
    tx_pages: (Region, Vec<GrantRef>),
    rx_pages: (Region, Vec<GrantRef>),
    /// The flags of each request that names a buffer.
    tx_flags: u16,
    staging: Option<(StagingArea<Loopback>, StagingArea<Loopback>)>,
    data_ring: Option<DataArea<Loopback>>,
    /// The list page, if the back exports pages.
    list: Option<Region>,
    /// Number of frames in pages of the back, and number that were lost with their back.
    lent: u64,
    lost: u64,
    /// Ids of frames on the TX ring, in their order; those in the data ring among them.
    in_ring: VecDeque<Option<u16>>,
    /// Frames through the data ring, TX and RX.
    ringed: [u64; 2],
    slots: usize,
    posted: u64,
}

impl ModelGuest {
    /// Goes to state 4, and waits for the back.
    pub fn connect(world: &World, staged: bool) -> Self {
        Self::over(world.guest(), staged, "copy", 0)
    }

    /// Like `connect`, by the path of this name.
    pub fn connect_by(world: &World, (path, staged): (&str, bool)) -> Self {
        Self::over(world.guest(), staged, path, if staged { ORDER } else { 0 })
    }

    /// Like `connect`, over an existing attachment, with rings of `1 << order` pages.
    pub fn over(
        (platform, mut xs): (Loopback, Client<UnixTransport>),
        staged: bool,
        path: &str,
        order: u32,
    ) -> Self {
        let persistent = path == "persistent";
        let device = Device::front(&mut xs, Class::VIF, 0).unwrap();
        device.watch_peer(&mut xs).unwrap();
        let state = device.wait_peer(&mut xs, &MonotonicClock, None, |s| s == XenbusState::InitWait);
        assert_eq!(state.unwrap(), XenbusState::InitWait);
        let pages = |n: usize, acc| {
            let mut refs = vec![GrantRef::NONE; n];
            let region = platform.grants().alloc(BACK, acc, &mut refs).unwrap();
            (region, refs)
        };
        let (tx_ring, tx_ref) = pages(1 << order, Access::ReadWrite);
        let (rx_ring, rx_ref) = pages(1 << order, Access::ReadWrite);
        let (tx_ring, rx_ring) = (RingPages::<NetTx, _>::new(tx_ring), RingPages::<NetRx, _>::new(rx_ring));
        let slots = 256 << order;
        tx_ring.init();
        rx_ring.init();
        let (chan, port) = platform.events().offer(BACK).unwrap();
        let area = |acc, first| {
            let len = DataLen::new(STAGED).unwrap();
            StagingArea::new(&platform, &mut Regions::new(BACK), acc, len, slots as u32, first).unwrap()
        };
        let staging = staged.then(|| (area(Access::ReadOnly, 0), area(Access::ReadWrite, slots as u16)));
        let keys = |area: &StagingArea<Loopback>| {
            DataRequest::Keys(DataKeys { list_refs: area.list_refs().to_vec(), len: area.data_len() })
        };
        let ids = slots as u32;
        let data_ring = (path == "data-ring")
            .then(|| DataArea::new(&platform, &mut Regions::new(BACK), DATA_RING, [true; 2], ids).unwrap());
        let list = (path == "guest-copy").then(|| pages(1, Access::ReadWrite));
        let queue = QueueKeys {
            guest_copy: list.as_ref().map(|(_, refs)| refs[0]).into(),
            data_ring: data_ring.as_ref().map(DataArea::index_ref).into(),
            tx_ring: tx_ref,
            rx_ring: rx_ref,
            staging: Lists {
                tx: staging.as_ref().map_or(DataRequest::None, |(tx, _)| keys(tx)),
                rx: staging.as_ref().map_or(DataRequest::None, |(_, rx)| keys(rx)),
            },
            ..QueueKeys::new(GrantRef::NONE, GrantRef::NONE, ChannelKeys::Single(port))
        };
        let foreign = path == "foreign";
        let request = FrontRequest { persistent, foreign, ..FrontRequest::new(vec![queue]) };
        let start = START;
        // A page of each id: granted, or named by its frame to a back that has all of this domain
        // mapped.
        let named = |acc, mark: u32| {
            let (region, refs) = pages(slots, acc);
            let first = platform.grants().first_frame(&region).filter(|_| foreign);
            let frames =
                first.map(|first| (first..).take(slots).map(|frame| GrantRef(mark | frame)).collect());
            (region, frames.unwrap_or(refs))
        };
        let (tx_pages, rx_pages) = (named(Access::ReadOnly, 0), named(Access::ReadWrite, RX_FOREIGN));
        let mut guest = Self {
            tx: TxModel::starting_at(tx_ring, start),
            rx: RxModel::starting_at(rx_ring, start),
            tx_pages,
            rx_pages,
            tx_flags: if foreign { TXF_FOREIGN } else { 0 },
            platform,
            xs,
            device,
            chan,
            staging,
            data_ring,
            list: list.map(|(page, _)| page),
            lent: 0,
            lost: 0,
            in_ring: VecDeque::new(),
            ringed: [0; 2],
            slots,
            posted: 0,
        };
        guest.bus().publish(&request.pairs(), of_front_connection).unwrap();
        guest.bus().set_state(XenbusState::Connected).unwrap();
        guest.wait_for(XenbusState::Connected);
        guest
    }

    fn bus(&mut self) -> StoreBus<'_, UnixTransport> {
        StoreBus { device: &self.device, xs: &mut self.xs }
    }

    fn wait_for(&mut self, wanted: XenbusState) {
        let state = self.device.wait_peer(&mut self.xs, &MonotonicClock, None, |s| s == wanted);
        assert_eq!(state.unwrap(), wanted);
    }

    /// Number of slots of each ring.
    pub fn slots(&self) -> u64 {
        self.slots as u64
    }

    /// The back's state now: it is never to leave 4.
    pub fn back_state(&mut self) -> XenbusState {
        self.device.peer_state(&mut self.xs).unwrap()
    }

    /// Sends frames number `first` to `first + n`, each of one slot or of three (one of them an
    /// extra info), and publishes them at once.
    pub fn send(&mut self, first: u64, n: u64, long: bool) {
        for seq in first..first + n {
            // Two data slots each, whatever is in flight; from one list page into the next, where
            // there are two.
            let id = (seq as usize * 2 + self.slots / 2 - 12) % self.slots;
            let frame = |len| {
                let mut frame = vec![0; len];
                sequence::fill(&mut frame, seq);
                frame
            };
            let tx_flags = self.tx_flags;
            let data = |id: usize, flags, size: usize| {
                Slot::Data(TxRequest {
                    gref: self.tx_pages.1[id].0,
                    offset: 0,
                    flags: flags | tx_flags,
                    id: id as u16,
                    size: size as u16,
                })
            };
            let len = if long { 5000 } else { 900 };
            let out = self.data_ring.as_mut().and_then(|area| area.out.as_mut());
            let place = out.and_then(|out| out.put(id as u16, &&frame(len)[..]));
            self.in_ring.push_back(place.map(|_| id as u16));
            if let Some(gref) = place {
                self.ringed[0] += 1;
                let (id, size) = (id as u16, len as u16);
                let request =
                    |flags| Slot::Data(TxRequest { gref, offset: 0, flags: flags | TXF_DATA_RING, id, size });
                let large = Extra::Gso { size: 1448, gso_type: GSO_TYPE_TCPV4 };
                if long {
                    self.tx.write(&[request(LARGE | TXF_EXTRA_INFO), Slot::extra(large, false)]);
                } else {
                    self.tx.write(&[request(0)]);
                }
                continue;
            }
            if long {
                let frame = frame(5000);
                assert!(self.tx_pages.0.copy_in(id * PAGE_SIZE, &frame[..PAGE_SIZE]));
                assert!(self.tx_pages.0.copy_in((id + 1) * PAGE_SIZE, &frame[PAGE_SIZE..]));
                if let Some((area, _)) = &self.staging {
                    let head = &frame[..STAGED as usize];
                    assert!(area.bytes().copy_in(area.start(id as u16), head));
                }
                self.tx.write(&[
                    data(id, LARGE | TXF_MORE_DATA | TXF_EXTRA_INFO, frame.len()),
                    Slot::extra(Extra::Gso { size: 1448, gso_type: GSO_TYPE_TCPV4 }, false),
                    data(id + 1, 0, frame.len() - PAGE_SIZE),
                ]);
            } else {
                let frame = frame(900);
                let mut slot = data(id, 0, frame.len());
                if let (Some((area, _)), Slot::Data(req)) = (&self.staging, &mut slot) {
                    assert!(area.bytes().copy_in(area.start(id as u16), &frame));
                    req.gref = 0;
                } else {
                    assert!(self.tx_pages.0.copy_in(id * PAGE_SIZE, &frame));
                }
                self.tx.write(&[slot]);
            }
        }
        self.tx.publish();
        self.platform.events().notify(&self.chan);
    }

    /// Frames that were answered since the last call; each answer is good.
    pub fn answered(&mut self) -> u64 {
        let answers = self.tx.answers().unwrap();
        for statuses in &answers {
            let right: &[i16] = &[RSP_OKAY, RSP_NULL, RSP_OKAY];
            assert_eq!(statuses, &right[..statuses.len()]);
            let id = self.in_ring.pop_front().unwrap();
            let out = self.data_ring.as_mut().and_then(|area| area.out.as_mut());
            if let (Some(id), Some(out)) = (id, out) {
                out.free(id);
            }
        }
        answers.len() as u64
    }

    /// Frames that went through the data ring, TX and RX.
    pub fn ringed(&self) -> [u64; 2] {
        self.ringed
    }

    /// Posts all RX slots that are free.
    pub fn post(&mut self) {
        self.post_unheard();
        self.platform.events().notify(&self.chan);
    }

    /// Posts slots without an event for a back that sleeps.
    pub fn post_unheard(&mut self) {
        while self.rx.free() > 0 {
            let id = (self.posted % self.slots as u64) as u16;
            self.posted += 1;
            self.rx.post(RxRequest { id, gref: self.rx_pages.1[id as usize].0 });
        }
    }

    /// The numbers of the frames that arrived with every byte right.
    pub fn received(&mut self) -> Vec<u64> {
        let frames = self.rx.frames().unwrap();
        let in_ring = |f: &&RxFrame| f.slots.iter().all(|rsp| rsp.flags & RXF_DATA_RING != 0);
        self.ringed[1] += frames.iter().filter(in_ring).count() as u64;
        let mut seen = Vec::new();
        for frame in &frames {
            let is_lent = frame.slots.iter().any(|rsp| generation_of(rsp.flags) != 0);
            self.lent += u64::from(is_lent);
            match self.bytes(frame) {
                Some(bytes) => seen.push(sequence::check(&bytes).unwrap()),
                None => self.lost += 1,
            }
        }
        seen
    }

    /// Number of frames in pages that backs granted, and number of those that were lost with their
    /// back.
    pub fn lent(&self) -> [u64; 2] {
        [self.lent, self.lost]
    }

    /// Copies a fragment of an exported page. False: its back is gone, and the page with it.
    fn copy_lent(&self, rsp: &RxResponse, piece: &mut [u8]) -> bool {
        let list = self.list.as_ref().unwrap();
        let is_its = || list.load_u32(GENERATION) == Some(generation_of(rsp.flags).into());
        let slot = START.wrapping_add(rsp.id.into()) as usize % self.slots;
        let gref = GrantRef(list.load_u32(REFS + 4 * slot).unwrap());
        let (offset, len) = (rsp.offset, piece.len() as u16);
        let mut ops = [CopyOp { gref, offset, len, at: 0, status: GrantStatus::OKAY }];
        let copied =
            is_its() && self.platform.peer().copy(BACK, LocalBytes::FromPeer(piece), &mut ops).is_ok();
        copied && ops[0].status == GrantStatus::OKAY && is_its()
    }

    fn bytes(&self, frame: &RxFrame) -> Option<Vec<u8>> {
        assert!(!frame.failed() && frame.extras.is_empty(), "{frame:?}");
        let mut bytes = Vec::new();
        for rsp in &frame.slots {
            let mut piece = vec![0; rsp.status as usize];
            let staged = self.staging.as_ref().filter(|_| frame.bytes() <= STAGED as usize);
            let within = self.data_ring.as_ref().and_then(|area| area.within.as_ref());
            if self.list.is_some() && generation_of(rsp.flags) != 0 {
                if !self.copy_lent(rsp, &mut piece) {
                    return None;
                }
                bytes.extend(piece);
                continue;
            }
            if rsp.flags & RXF_DATA_RING != 0 {
                let within = within.unwrap();
                let (place, _) = within.piece(rsp.offset, rsp.status).unwrap();
                assert!(within.copy_out(place, &mut piece));
                bytes.extend(piece);
                continue;
            }
            let there = match staged {
                Some((_, area)) => {
                    let at = area.start(rsp.id) + rsp.offset as usize;
                    area.bytes().copy_out(at, &mut piece)
                }
                None => {
                    self.rx_pages.0.copy_out(rsp.id as usize * PAGE_SIZE + rsp.offset as usize, &mut piece)
                }
            };
            assert!(there);
            bytes.extend(piece);
        }
        Some(bytes)
    }

    /// Closes as a front does, and frees its memory.
    pub fn close(mut self) {
        self.bus().set_state(XenbusState::Closing).unwrap();
        self.wait_for(XenbusState::Closing);
        self.bus().set_state(XenbusState::Closed).unwrap();
        self.wait_for(XenbusState::Closed);
        std::thread::sleep(Duration::from_millis(1));
        drop(self);
    }
}
