//! The guest attacks the back's RX: requests, indices, grants, pages; while frames of any kind
//! come for it.
//!
//! After each run the model front (`pregrant_testkit::model_front`) takes the answers, and each
//! frame that was due is found: in its place, with its bytes and flags, or refused for a reason.
//! The guest's pages are poisoned before, and nothing but frames may have been written to them:
//! what else the back has in its memory stays there. At the end nothing is mapped or granted.

use crate::guest_pages::{GuestPages, Right, bytes_of, granted};
use crate::staged::Staged;
use crate::tape::{self, Tape};
use pregrant::net::back::{Polled, RxQueue, SharedControl};
use pregrant::net::batch::FrameHash;
use pregrant::net::batch::rx::slots_needed;
use pregrant::net::batch::tx::MulticastAsk;
use pregrant::net::checksum;
use pregrant::net::features::RxAccepts;
use pregrant::net::headers::{IpHeaders, IpVersion, MacAddr, addresses};
use pregrant::net::one_slot::OneSlot;
use pregrant::net::path::staging::back::RxHeads;
use pregrant::net::path::{AnyPath, CopyPath, PersistentPath, StagingPath};
use pregrant::platform::local::{LocalChan, LocalDomain, LocalRegion};
use pregrant::platform::{Access, Events, GrantPool};
use pregrant::port::{BURST_FRAMES, MAX_FRAME, Offload};
use pregrant::ring::{BackRing, NetRx, RingPages, Word};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{
    Extra, RXF_CSUM_BLANK, RXF_DATA_VALIDATED, RXF_EXTRA_INFO, RXF_MORE_DATA, RxRequest,
};
use pregrant::wire::netif_ctrl::CtrlStatus;
use pregrant::{PAGE_SIZE, PeerFault};
use pregrant_testkit::model_front::{RxFrame, RxModel};
use pregrant_testkit::two_domains::{GUEST, Ring, TestPort, TwoDomains};
use std::collections::{BTreeSet, VecDeque};

/// Number of pages with ordinary grants.
const PAGES: usize = 16;
/// Largest number of operations of one input.
const OPS: usize = 200;
/// Byte that fills the guest's pages before a run.
const POISON: u8 = 0xA5;

/// A frame as it should arrive.
struct Due {
    bytes: Vec<u8>,
    offload: Offload,
    extras: Vec<Extra>,
}

struct Game {
    domains: TwoDomains,
    model: RxModel<Ring<NetRx>>,
    ring: LocalRegion,
    /// Requests without an answer, as posted.
    posted: VecDeque<RxRequest>,
    /// An index was shown that is not the model's: from now on only the frame of the run is
    /// checked.
    lied: bool,
    back: RxQueue<LocalDomain>,
    chans: (LocalChan, LocalChan),
    pages: GuestPages,
    staged: Option<Staged>,
    heads: RxHeads,
    accepts: RxAccepts,
    control: SharedControl,
    port: TestPort,
    /// Frames that the back was given and has not delivered, as they should arrive.
    due: VecDeque<Due>,
}

pub fn back_rx(data: &[u8]) {
    tape::play(data, OPS, Game::new, |game, tape| game.play(tape).is_ok(), Game::close);
}

impl Game {
    fn new(tape: &mut Tape<'_>) -> Self {
        let domains = TwoDomains::new();
        let start = if tape.below(2) == 0 { 0 } else { u32::MAX - u32::from(tape.u8()) };
        let bits = tape.u8();
        let accepts = RxAccepts {
            sg: bits & 1 == 0,
            gso_tcpv4: bits & 2 == 0,
            gso_tcpv6: bits & 4 == 0,
            csum: bits & 8 == 0,
            ipv6_csum: bits & 16 == 0,
        };
        let control = SharedControl::default();
        if bits & 32 != 0 {
            control.lock().multicast.request(true);
            assert!(control.lock().multicast.apply(MulticastAsk::Add(MacAddr([1, 0, 0, 0, 0, 9]))));
        }
        if bits & 64 != 0 {
            let mut control = control.lock();
            let hash = control.hash_mut();
            let set = [hash.set_algorithm(1), hash.set_flags(tape.u8().into())];
            let key = hash.set_key(tape.bytes(40));
            assert!(set[0] == CtrlStatus::Success && key == CtrlStatus::Success);
        }
        let (front_ring, back_ring) = domains.ring::<NetRx>();
        let chans = domains.channel();
        let way = tape.below(4);
        let mut heads = RxHeads::InPage;
        let (staged, path) = match way {
            0 => (None, AnyPath::Copy(CopyPath::default())),
            1 => (
                None,
                AnyPath::Persistent(
                    PersistentPath::new(tape.below(PAGES + 1), Access::ReadWrite).expect("memory"),
                ),
            ),
            _ => {
                let (staged, buffers) = Staged::new(&domains, tape, Access::ReadWrite);
                heads = match bits & 128 {
                    0 if way == 3 => RxHeads::InBoth,
                    0 => RxHeads::InPage,
                    _ => RxHeads::InBuffer,
                };
                (
                    Some(staged),
                    AnyPath::Staging(StagingPath::new(buffers).expect("memory").with_rx_heads(heads, false)),
                )
            }
        };
        let ring_memory = front_ring.into_pages();
        let model = RxModel::starting_at(RingPages::<NetRx, _>::new(ring_memory.clone()), start);
        let (ring, _) = BackRing::attach(back_ring, None).expect("a fresh ring");
        let mut pages = GuestPages::new(&domains, PAGES, Right::Write);
        pages.kept = way == 1;
        Self {
            model,
            ring: ring_memory,
            posted: VecDeque::new(),
            lied: false,
            back: RxQueue::new(ring, path, accepts).expect("memory"),
            chans,
            pages,
            staged,
            heads,
            accepts,
            control,
            port: TestPort::default(),
            due: VecDeque::new(),
            domains,
        }
    }

    /// Plays one operation. `Err`: the back reported a fault, and was right.
    fn play(&mut self, tape: &mut Tape<'_>) -> Result<(), PeerFault> {
        match tape.below(10) {
            0 => {
                for _ in 0..1 + tape.below(64) {
                    let id = self.model.next_index() as u16 & 255;
                    self.post(RxRequest { id, gref: self.pages.gref(id.into()) });
                }
            }
            1 => {
                let gref = self.pages.gref(tape.u8().into());
                self.post(RxRequest { id: tape.u16() % 600, gref });
            }
            2 => self.post(RxRequest { id: tape.u16(), gref: tape.u32() }),
            3 => self.give(tape),
            4 => {
                for _ in 0..1 + tape.below(16) {
                    self.give_bytes(vec![7; 60], Offload::default());
                }
            }
            5 => {
                let right = tape.one_of(&[Right::None, Right::Read, Right::Write, Right::Stranger]);
                self.pages.grant(&self.domains, tape.u8() as usize, right);
            }
            6 => {
                let by = tape.one_of(&[1u32, 256, 257, 0x8000_0000, u32::MAX]);
                self.model.publish_index(self.model.next_index().wrapping_add(by ^ u32::from(tape.u8())));
                self.lied = true;
            }
            // A word of the page beyond the indices and the requests that wait.
            7 => {
                let word = tape.one_of(&[Word::ReqEvent as usize, Word::RspEvent as usize, 4, 15, 1023]);
                assert!(self.ring.store_u32(4 * word, tape.u32()));
            }
            8 => {
                self.domains.guest.notify(&self.chans.0);
                let work = self.back.final_check();
                assert!(self.lied || work.is_ok(), "{work:?} of an honest index");
                work?;
            }
            _ => {}
        }
        self.run()
    }

    fn post(&mut self, req: RxRequest) {
        if self.model.free() > 0 {
            // Its own ring as a buffer: whatever the answers say then, it asked for it.
            self.lied |=
                self.pages.page_of(req.gref).is_none() && granted(&self.domains, req.gref, 0, 0).is_some();
            self.model.post(req);
            self.posted.push_back(req);
        }
    }

    /// Puts a frame from the other side, as a neighbour may have made it.
    fn give(&mut self, tape: &mut Tape<'_>) {
        let bits = tape.u8();
        let len = match bits >> 5 {
            0 | 1 => usize::from(tape.u8()),
            2..=4 => usize::from(tape.u16() % 6000),
            5 => {
                let staged = self.staged.as_ref().map_or(4096, |s| s.len);
                [staged, staged + 1, 4095, 4096, 4097, 8192, 8193, MAX_FRAME][tape.below(8)]
            }
            _ => usize::from(tape.u16()),
        };
        let head = tape.string();
        let mut bytes: Vec<u8> = (0..len.min(MAX_FRAME)).map(|at| ((at * 7) ^ (at >> 8)) as u8).collect();
        let n = head.len().min(bytes.len());
        bytes[..n].copy_from_slice(&head[..n]);
        let gso_type = (bits >> 2 & 3) % 3;
        let offload = Offload {
            csum_blank: bits & 1 != 0,
            csum_ok: bits & 3 != 0,
            gso_type,
            gso_size: if gso_type == 0 { 0 } else { 1448 },
        };
        self.give_bytes(bytes, offload);
    }

    fn give_bytes(&mut self, bytes: Vec<u8>, offload: Offload) {
        if self.port.gives.len() < 2 * BURST_FRAMES {
            self.due.extend(self.expected(bytes.clone(), offload));
            self.port.gives.push_back((bytes, offload));
        }
    }

    /// The frame as the guest should get it; None if it can never receive it.
    fn expected(&self, mut bytes: Vec<u8>, mut offload: Offload) -> Option<Due> {
        let a = self.accepts;
        // netif has a word for TCP and UDP behind an untagged Ethernet header alone.
        let ip = IpHeaders::parse(&bytes);
        let is_plain = ip.is_ok_and(|ip| ip.is_plain());
        let gso = match offload.gso_type {
            0 => true,
            _ if ip.is_ok() && !is_plain => false,
            1 => a.gso_tcpv4,
            _ => a.gso_tcpv6,
        };
        let buffers = self.back.chain().buffers().map(|buffers| buffers.data_len);
        let fits = |len| len <= PAGE_SIZE && OneSlot::with_buffers(buffers).takes(len, &bytes);
        if bytes.is_empty() || !gso || !a.sg && !fits(bytes.len()) {
            return None;
        }
        // A frame of an unknown protocol is left blank only for a guest that takes both versions.
        let takes_blank = match ip.map(|headers| headers.version) {
            Ok(IpVersion::V4) => is_plain && a.csum,
            Ok(IpVersion::V6) => is_plain && a.ipv6_csum,
            Err(_) => a.csum && a.ipv6_csum,
        };
        if offload.csum_blank && !takes_blank {
            checksum::finish_blank(&mut bytes).ok()?;
            offload.csum_blank = false;
        }
        let (dst, _) = addresses(&bytes).unwrap_or_default();
        if bytes.len() >= 14 && !self.control.lock().multicast.wants(dst) {
            return None;
        }
        let gso = Extra::Gso { size: offload.gso_size, gso_type: offload.gso_type };
        let mut extras = if offload.gso_type == 0 { vec![] } else { vec![gso] };
        if self.control.lock().hash().is_on() {
            extras.extend(self.control.lock().hash().hash(&bytes).map(FrameHash::extra));
        }
        Some(Due { bytes, offload, extras })
    }

    /// Polls until nothing moves, then checks what the guest got.
    fn run(&mut self) -> Result<(), PeerFault> {
        let poisoned = vec![POISON; self.pages.region.len()];
        assert!(self.pages.region.copy_in(0, &poisoned));
        if let Some(staged) = &self.staged {
            assert!(staged.region.copy_in(0, &poisoned[..staged.region.len()]));
        }
        loop {
            let polled =
                self.back.poll(&self.domains.host, GUEST, &self.chans.1, &mut self.port, &self.control);
            match polled {
                Ok(Polled::More) => {}
                Ok(Polled::Idle) => break,
                Err(e) => {
                    assert!(self.lied, "{e} of an honest guest");
                    return Err(e);
                }
            }
        }
        assert!(self.back.waiting() <= BURST_FRAMES, "what waits is bounded");
        if self.lied {
            return Ok(());
        }
        let frames = self.model.frames().expect("answers by the rules");
        let requests: Vec<Vec<RxRequest>> = frames
            .iter()
            .map(|f| {
                let n = f.slots.len() + f.extras.len();
                let mut of: Vec<_> = self.posted.drain(..n).collect();
                // The extras' requests are used up unread.
                of.drain(1..1 + f.extras.len());
                of
            })
            .collect();
        // The back takes no staging buffer twice in a batch.
        let mut seen = BTreeSet::new();
        let twice: BTreeSet<u16> =
            requests.iter().flatten().map(|r| r.id).filter(|id| !seen.insert(*id)).collect();
        let mut written = Written::new([Some(&self.pages.region), self.staged.as_ref().map(|s| &s.region)]);
        for (frame, reqs) in frames.iter().zip(&requests) {
            let due = self.due.pop_front().expect("a frame that was not sent");
            self.frame_arrived(frame, reqs, &due, &twice, &mut written);
        }
        // Where pages stay mapped, a frame all of whose pages are there is written before one that
        // is copied. A guest that posts a page twice finds either frame in it.
        if self.pages.kept {
            let mut seen = BTreeSet::new();
            let pages = requests.iter().flatten().filter_map(|r| self.pages.page_of(r.gref));
            pages.filter(|page| !seen.insert(*page)).for_each(|page| {
                written.maybe(Some((0, page * PAGE_SIZE)), PAGE_SIZE);
            });
        }
        if let Some(due) = self.due.front() {
            let need = slots_needed(due.bytes.len(), PAGE_SIZE, due.extras.len() as u32);
            assert!(self.model.in_flight() < need, "a frame waits though its slots are there");
        }
        written.check();
        Ok(())
    }

    fn frame_arrived(
        &self,
        frame: &RxFrame,
        reqs: &[RxRequest],
        due: &Due,
        twice: &BTreeSet<u16>,
        written: &mut Written,
    ) {
        let Due { bytes, offload, extras } = due;
        let is_staged = |s: &Staged| s.copy_only || bytes.len() <= s.len;
        let staged = self.staged.as_ref().filter(|s| is_staged(s));
        let pieces: Vec<&[u8]> = bytes.chunks(PAGE_SIZE).collect();
        assert_eq!(pieces.len(), frame.slots.len(), "slots for {} bytes", bytes.len());
        // Bytes of a longer frame that are in the first slot's buffer, or there too.
        let heads = self.staged.as_ref().filter(|_| staged.is_none() && self.heads != RxHeads::InPage);
        let head = heads.map_or(0, |s| s.len.min(pieces[0].len()));
        let in_buffer = heads.and_then(|s| s.place(reqs[0].id, 0, head)).map(|at| (1, at));
        let only = if self.heads == RxHeads::InBuffer { head } else { 0 };
        // Where each piece should be: in which memory, and from which byte on.
        let places: Vec<Option<(usize, usize)>> = frame
            .slots
            .iter()
            .zip(reqs)
            .zip(&pieces)
            .enumerate()
            .map(|(k, ((slot, req), piece))| match staged {
                Some(s) => s.place(req.id, slot.offset, piece.len()).map(|at| (1, at)),
                None if k == 0 && only > 0 && in_buffer.is_none() => None,
                None if k == 0 && only == piece.len() => Some((0, 0)),
                None => self.pages.page_of(req.gref).map(|page| (0, page * PAGE_SIZE + slot.offset as usize)),
            })
            .collect();
        let behind = |k: usize, (memory, at): (usize, usize)| match k {
            0 => ((memory, at + only), &pieces[0][only..]),
            _ => ((memory, at), pieces[k]),
        };
        if frame.failed() {
            let needed = staged.is_some() || only > 0;
            let repeated = needed && reqs.iter().any(|r| twice.contains(&r.id));
            written.maybe(in_buffer, head);
            assert!(places.contains(&None) || repeated, "a frame failed without a reason");
            assert!(frame.slots.iter().all(|s| s.status < 0), "ERROR on every slot");
            // Those pieces that came first may have been written.
            for (k, place) in places.iter().enumerate() {
                let part = place.map(|place| behind(k, place));
                written.maybe(part.map(|part| part.0), part.map_or(0, |part| part.1.len()));
            }
            return;
        }
        assert_eq!(&frame.extras, extras);
        for (k, (slot, place)) in frame.slots.iter().zip(&places).enumerate() {
            let mut flags = if k + 1 < pieces.len() { RXF_MORE_DATA } else { 0 };
            if k == 0 {
                flags |= match offload {
                    Offload { csum_blank: true, .. } => RXF_CSUM_BLANK | RXF_DATA_VALIDATED,
                    Offload { csum_ok: true, .. } => RXF_DATA_VALIDATED,
                    _ => 0,
                };
                flags |= if extras.is_empty() { 0 } else { RXF_EXTRA_INFO };
            }
            assert_eq!((slot.flags, slot.status as usize), (flags, pieces[k].len()));
            let (place, piece) = behind(k, place.expect("a frame arrived where it could not"));
            written.piece(place, piece);
        }
        match in_buffer {
            // Of those that have one id one has it.
            _ if only == 0 && twice.contains(&reqs[0].id) => written.maybe(in_buffer, head),
            Some(place) => written.piece(place, &pieces[0][..head]),
            None => {}
        }
    }

    fn close(self) {
        let Self { domains, ring, model, back, pages, staged, chans, .. } = self;
        drop((back, chans, model));
        pages.close(&domains);
        if let Some(staged) = staged {
            staged.close(&domains);
        }
        assert!(domains.guest.release(ring).is_ok());
        domains.assert_empty();
    }
}

/// Actual and expected contents of the two memories (0: ordinary pages, 1: staging) after a run.
struct Written {
    found: [Vec<u8>; 2],
    expected: [Vec<u8>; 2],
}

impl Written {
    fn new(regions: [Option<&LocalRegion>; 2]) -> Self {
        let found = regions.map(|r| r.map_or(Vec::new(), |r| bytes_of(r, 0, r.len())));
        Self { expected: found.clone().map(|f| vec![POISON; f.len()]), found }
    }

    fn piece(&mut self, (memory, at): (usize, usize), piece: &[u8]) {
        self.expected[memory][at..at + piece.len()].copy_from_slice(piece);
    }

    /// A frame that failed may have been there, or not.
    fn maybe(&mut self, place: Option<(usize, usize)>, len: usize) {
        if let Some((memory, at)) = place {
            self.expected[memory][at..at + len].copy_from_slice(&self.found[memory][at..at + len]);
        }
    }

    fn check(&self) {
        for (found, expected) in self.found.iter().zip(&self.expected) {
            let wrong = || found.iter().zip(expected).position(|(f, e)| f != e);
            assert!(found == expected, "byte {:?} is not what a frame put there, or not this one", wrong());
        }
    }
}
