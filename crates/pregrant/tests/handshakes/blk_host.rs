//! Another system's block back on the rings: it takes and answers requests as that system does, and
//! validates what our front asks.

use super::blk_guest::{Layout, X86_32, X86_64};
use super::machine::{GUEST, HOST, Machine, VBD};
use super::page::Page;
use super::script::{Io, Pair, Step, play};
use pregrant::blk::front::{Ask, FrontConfig, FrontVbd};
use pregrant::platform::local::{LocalChan, LocalDomain, LocalMap};
use pregrant::platform::{Access, Events, PeerMem};
use pregrant::shm::SharedBytes;
use pregrant::wire::blkif::Abi;
use pregrant::xenbus::Side;
use pregrant::{EvtchnPort, GrantRef};
use std::collections::BTreeMap;

/// The requests that a system's back serves. A request that it does not offer must not come.
#[derive(Clone, Copy)]
pub struct Manners {
    /// Segments of an indirect request.
    pub indirect: usize,
    /// Keeps the pages that it mapped.
    pub keeps: bool,
    pub flush: bool,
    pub barrier: bool,
    pub discard: bool,
    /// Sectors of the disk.
    pub sectors: u64,
}

struct Queue {
    ring: Page<LocalMap>,
    _channel: LocalChan,
    req_cons: u32,
    kept: BTreeMap<u32, LocalMap>,
}

pub struct BlkHost {
    front: FrontVbd<LocalDomain>,
    config: FrontConfig,
    queues: Vec<Queue>,
    manners: Manners,
    disk: Vec<u8>,
    asked: u64,
    flushes: u32,
    now_ns: u64,
}

/// Plays a back's table against our front, which restarts after a close.
pub fn play_back(manners: Manners, config: FrontConfig, steps: &[Step]) {
    let mut m = Machine::new(&VBD, Side::Front);
    let front = FrontVbd::new(HOST, config, true);
    let disk = vec![0; manners.sectors as usize * 512];
    let mut pair =
        BlkHost { front, config, queues: Vec::new(), manners, disk, asked: 0, flushes: 0, now_ns: 0 };
    play(&mut m, &mut pair, VBD.back, steps);
    assert!(pair.queues.is_empty(), "the table ends with what it mapped");
    assert!(pair.front.is_closed(), "our front has not closed, at state {}", pair.front.state());
}

impl Pair for BlkHost {
    fn step(&mut self, m: &mut Machine) {
        // A front that restarts pauses before.
        self.now_ns += 1_000_000_000;
        m.xen.stop_clock(self.now_ns);
        let guest = m.guest.clone();
        self.front.step(&guest, &mut m.bus()).unwrap_or_else(|e| panic!("our front gives up: {e}"));
    }

    fn close(&mut self, m: &mut Machine) {
        self.front.close(&mut m.bus(), None).unwrap();
    }

    fn map(&mut self, m: &mut Machine, keys: &[(&'static str, u32)]) {
        assert!(self.queues.is_empty(), "a table unmaps before it maps again");
        let mut found: Vec<(&str, Vec<GrantRef>)> = Vec::new();
        for (key, n) in keys {
            let (of, name) = key.rsplit_once('/').unwrap_or(("", key));
            if found.last().is_none_or(|(at, _)| *at != of) {
                found.push((of, Vec::new()));
            }
            let (_, pages) = found.last_mut().unwrap();
            if name != "event-channel" {
                pages.push(GrantRef(*n));
                continue;
            }
            let ring = m.host.map(GUEST, pages, Access::ReadWrite).expect("the ring is granted");
            let channel = m.host.bind(GUEST, EvtchnPort(*n)).expect("the channel is offered");
            let ring = Page::new(ring, self.layout().slot);
            assert_eq!(ring.slots as usize, 32 * pages.len());
            self.queues.push(Queue { ring, _channel: channel, req_cons: 0, kept: BTreeMap::new() });
        }
    }

    fn io(&mut self, m: &mut Machine, io: Io) {
        assert!(self.front.is_live(), "our front waits, at state {}", self.front.state());
        assert_eq!(self.front.nr_queues(), self.queues.len(), "queues that are live");
        let figures = *self.front.figures().unwrap();
        assert_eq!(figures.sectors, self.manners.sectors);
        assert_eq!(self.front.persists(), self.manners.keeps && self.config.persistent);
        for i in 0..self.queues.len() {
            let at = 300 * i as u64;
            for sectors in [1, 8, 11, 40] {
                self.write_and_read(m, i, at + 5, sectors);
            }
            if io == Io::Many {
                // Until the ring's indices have passed its end, several at once.
                for k in 0..self.queues[i].ring.slots as u64 {
                    self.write_and_read(m, i, at + k % 200, 24);
                }
                let most = self.front.queue_mut(i).unwrap().most_bytes() / 512;
                let by_manners = if self.manners.indirect > 0 {
                    self.manners.indirect.min(self.config.max_segments as usize)
                } else {
                    11
                };
                assert_eq!(most, by_manners * 8, "sectors of its longest request");
                self.write_and_read(m, i, 0, most);
            }
            self.discard(m, i);
            let before = self.flushes;
            match self.front.flush_ask() {
                Some(ask) => {
                    self.submit(m, i, &ask);
                    self.finish(m, i, &[]);
                    assert_eq!(self.flushes, before + 1);
                }
                None => assert!(!self.manners.flush && !self.manners.barrier),
            }
        }
    }

    fn end(&mut self, _: &mut Machine) {
        self.queues.clear();
    }
}

impl BlkHost {
    fn layout(&self) -> Layout {
        if self.config.abi == Abi::X86_32 { X86_32 } else { X86_64 }
    }

    fn submit(&mut self, m: &Machine, i: usize, ask: &Ask<'_>) {
        self.asked += 1;
        assert_eq!(self.front.submit(&m.guest, i, ask, self.asked), Ok(()), "{ask:?}");
    }

    /// Three writes at once, which may be answered in any order; and what was written is read.
    fn write_and_read(&mut self, m: &Machine, i: usize, sector: u64, sectors: usize) {
        let len = sectors * 512;
        let seed = self.asked as u8;
        let byte = |k: usize| (k as u8).wrapping_mul(13) ^ (k >> 9) as u8 ^ seed.wrapping_mul(71);
        let bytes: Vec<u8> = (0..len).map(byte).collect();
        let third = sectors / 3 * 512;
        let mut at = sector;
        for piece in [&bytes[..third], &bytes[third..2 * third], &bytes[2 * third..]] {
            if !piece.is_empty() {
                self.submit(m, i, &Ask::Write { sector: at, bytes: piece });
                at += piece.len() as u64 / 512;
            }
        }
        self.finish(m, i, &[]);
        assert!(self.disk[sector as usize * 512..][..len] == bytes, "what was written to {sector}");
        self.submit(m, i, &Ask::Read { sector, sectors: sectors as u32 });
        self.finish(m, i, &bytes);
    }

    /// Discards if the back offers it; otherwise does nothing.
    fn discard(&mut self, m: &Machine, i: usize) {
        let discard = self.front.figures().unwrap().discard;
        assert_eq!(discard.is_some(), self.manners.discard);
        assert!(discard.is_none_or(|discard| !discard.zeroes), "none of them says so");
        if self.manners.discard {
            self.submit(m, i, &Ask::Discard { sector: 16, sectors: 8, secure: false });
            self.finish(m, i, &[]);
            assert!(self.disk[16 * 512..24 * 512].iter().all(|byte| *byte == 0));
        }
    }

    /// The back does all that was asked, and answers the last first; each answer arrives once, and
    /// the read's bytes are these.
    fn finish(&mut self, m: &Machine, i: usize, bytes: &[u8]) {
        self.front.publish(&m.guest, i);
        let (from, to) = (self.queues[i].req_cons, self.queues[i].ring.req_prod());
        assert_ne!(from, to, "nothing was asked");
        let answers: Vec<_> = (from..to).map(|at| self.perform(m, i, at)).collect();
        let Queue { ring, req_cons, .. } = &mut self.queues[i];
        for (at, (op, id)) in (from..to).zip(answers.iter().rev()) {
            ring.put(at, 0, &id.to_le_bytes());
            ring.put(at, 8, &[*op, 0, 0, 0]);
        }
        *req_cons = to;
        ring.set_req_event(to.wrapping_add(1));
        ring.set_rsp_prod(to);
        let mut taken = Vec::new();
        let each = |answer: pregrant::blk::front::Answer<'_, LocalDomain>| {
            assert_eq!(answer.outcome, Ok(()));
            let mut read = vec![0; answer.len()];
            assert_eq!(answer.copy_out(&mut read), read.len());
            assert!(read == bytes, "{} bytes that were read", read.len());
            taken.push(answer.tag);
        };
        self.front.take(&m.guest, i, each).expect("an honest back");
        taken.sort_unstable();
        let asked: Vec<_> = (self.asked + 1 - u64::from(to.wrapping_sub(from))..=self.asked).collect();
        assert_eq!(taken, asked, "tags of answers");
    }

    /// Does one request: its op and id, for the answer.
    fn perform(&mut self, m: &Machine, i: usize, at: u32) -> (u8, u64) {
        const READ: u8 = 0;
        const WRITE: u8 = 1;
        const BARRIER: u8 = 2;
        const FLUSH: u8 = 3;
        const DISCARD: u8 = 5;
        const INDIRECT: u8 = 6;
        let (manners, layout) = (self.manners, self.layout());
        let ring = &self.queues[i].ring;
        let (op, id) = (ring.u8(at, 0), ring.u64(at, layout.id));
        let sector = ring.u64(at, layout.sector);
        let handle = ring.u16(at, if op == INDIRECT { layout.lists - 4 } else { 2 });
        assert!(op == DISCARD || handle == 51712 || handle == 0, "handle {handle}");
        let segment = |bytes: &[u8]| {
            let gref = u32::from_le_bytes(bytes[..4].try_into().unwrap());
            (gref, usize::from(bytes[4]), usize::from(bytes[5]))
        };
        let (does, segments): (u8, Vec<_>) = match op {
            READ | WRITE | BARRIER => {
                let n = u32::from(ring.u8(at, 1));
                assert!((1..=11).contains(&n) || op == BARRIER && n == 0, "{n} segments");
                (op, (0..n).map(|k| segment(&ring.get::<8>(at, layout.segments + 8 * k as usize))).collect())
            }
            INDIRECT => {
                let n = usize::from(ring.u16(at, 2));
                assert!((1..=manners.indirect).contains(&n), "{n} segments of an indirect request");
                let mut list = vec![0; 8 * n];
                for (k, piece) in list.chunks_mut(4096).enumerate() {
                    let gref = GrantRef(ring.u32(at, layout.lists + 4 * k));
                    let map = m.host.map(GUEST, &[gref], Access::ReadOnly).expect("the list is granted");
                    assert!(map.copy_out(0, piece));
                }
                (ring.u8(at, 1), list.chunks(8).map(segment).collect())
            }
            DISCARD => {
                assert!(manners.discard, "a discard that was not offered");
                // The sectors' number is where segments are in another's slot.
                let sectors = ring.u64(at, layout.sector + 8);
                self.disk[sector as usize * 512..][..sectors as usize * 512].fill(0);
                return (op, id);
            }
            FLUSH => {
                assert!(manners.flush, "a flush that was not offered");
                assert_eq!(ring.u8(at, 1), 0, "segments of a flush");
                self.flushes += 1;
                return (op, id);
            }
            _ => panic!("op {op}"),
        };
        if does == BARRIER {
            assert!(manners.barrier, "a barrier that was not offered");
            self.flushes += 1;
        }
        let mut place = sector as usize * 512;
        for (gref, first, last) in segments {
            assert!(first <= last && last < 8, "sectors {first} to {last} of a page");
            let (offset, len) = (512 * first, 512 * (last + 1 - first));
            let once;
            let map = if manners.keeps && self.config.persistent {
                let kept = &mut self.queues[i].kept;
                let map = || m.host.map(GUEST, &[GrantRef(gref)], Access::ReadWrite);
                &*kept.entry(gref).or_insert_with(|| map().expect("a page that is kept may be written to"))
            } else {
                let access = if does == READ { Access::ReadWrite } else { Access::ReadOnly };
                once = m.host.map(GUEST, &[GrantRef(gref)], access).expect("a segment's page is granted");
                &once
            };
            let sectors = &mut self.disk[place..][..len];
            let done =
                if does == READ { map.copy_in(offset, sectors) } else { map.copy_out(offset, sectors) };
            assert!(done);
            place += len;
        }
        (op, id)
    }
}
