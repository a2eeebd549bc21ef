//! Another system's block front on the rings: it fills slots as that system does, and validates
//! every answer of our back.

use super::machine::{GUEST, HOST, Machine, VBD};
use super::page::Page;
use super::script::{Grant, Io, Pair, Step, play};
use pregrant::blk::back::{BackVbd, VbdConfig};
use pregrant::blk::disk::DiskFigures;
use pregrant::platform::local::{LocalChan, LocalDomain, LocalRegion};
use pregrant::platform::{Access, Events, GrantPool};
use pregrant::shm::SharedBytes;
use pregrant::xenbus::Side;
use pregrant::{GrantRef, PAGE_SIZE};
use pregrant_testkit::model_disk::{ModelDisk, byte};

/// Number of sectors of the disk.
const SECTORS: u64 = 4096;
/// Pages that a queue has for either way.
const PAGES: usize = 64;

const READ: u8 = 0;
const WRITE: u8 = 1;
const BARRIER: u8 = 2;
const FLUSH: u8 = 3;
const INDIRECT: u8 = 6;
const OKAY: i16 = 0;

/// The offsets of a request's fields, for 64-bit slots and for 32-bit ones.
#[derive(Clone, Copy)]
pub struct Layout {
    pub slot: usize,
    pub id: usize,
    pub sector: usize,
    pub segments: usize,
    pub lists: usize,
}

pub const X86_64: Layout = Layout { slot: 112, id: 8, sector: 16, segments: 24, lists: 28 };
pub const X86_32: Layout = Layout { slot: 108, id: 4, sector: 12, segments: 20, lists: 24 };

struct Queue {
    ring: Page<LocalRegion>,
    layout: Layout,
    /// Pages that the back only reads, and pages that it may write.
    from: LocalRegion,
    from_refs: Vec<GrantRef>,
    into: LocalRegion,
    into_refs: Vec<GrantRef>,
    _channel: LocalChan,
    req_prod: u32,
    rsp_cons: u32,
}

pub struct BlkGuest {
    back: BackVbd<LocalDomain>,
    disk: ModelDisk,
    queues: Vec<Queue>,
    /// The expected content of the disk.
    expected: Vec<u8>,
    requests: u64,
}

/// Plays a front's table against our back, whose disk can be written to and flushed.
pub fn play_front(steps: &[Step]) {
    let mut m = Machine::new(&VBD, Side::Back);
    let disk = ModelDisk::new(DiskFigures::of(SECTORS));
    let back = BackVbd::new(GUEST, VBD.handle, VbdConfig::default(), Box::new(disk.clone()));
    let expected = (0..SECTORS as usize * 512).map(byte).collect();
    let mut pair = BlkGuest { back, disk, queues: Vec::new(), expected, requests: 0 };
    play(&mut m, &mut pair, VBD.back, steps);
    assert!(pair.queues.is_empty(), "the table ends with what it granted");
    assert!(pair.disk.inside().cache == pair.expected, "the disk holds what was not written");
}

impl Pair for BlkGuest {
    fn step(&mut self, m: &mut Machine) {
        let host = m.host.clone();
        self.back
            .step(&host, &mut m.bus(), &mut |_, _| None)
            .unwrap_or_else(|e| panic!("our back refuses: {e}"));
    }

    fn close(&mut self, m: &mut Machine) {
        let host = m.host.clone();
        self.back.close(&host, &mut m.bus(), None).unwrap();
    }

    fn grant(&mut self, m: &mut Machine, grant: Grant) -> Vec<(String, u32)> {
        let Grant { queues, order, other: narrow, read_only } = grant;
        assert!(self.queues.is_empty(), "a table ends before it grants again");
        let mut names = Vec::new();
        let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
        let layout = if narrow { X86_32 } else { X86_64 };
        for i in 0..queues {
            let alloc = |pages: usize, access| {
                let mut refs = vec![GrantRef::NONE; pages];
                (m.guest.alloc(HOST, access, &mut refs).unwrap(), refs)
            };
            let (ring, ring_refs) = alloc(1 << order, Access::ReadWrite);
            let (from, from_refs) = alloc(PAGES, access);
            let (into, into_refs) = alloc(PAGES, Access::ReadWrite);
            let (channel, port) = m.guest.offer(HOST).unwrap();
            for (k, gref) in ring_refs.iter().enumerate() {
                names.push((if order == 0 { format!("ring{i}") } else { format!("ring{i}.{k}") }, gref.0));
            }
            names.push((format!("port{i}"), port.0));
            let ring = Page::new(ring, layout.slot);
            assert_eq!(ring.slots, 32 << order);
            ring.init();
            let (req_prod, rsp_cons, _channel) = (0, 0, channel);
            self.queues.push(Queue {
                ring,
                layout,
                from,
                from_refs,
                into,
                into_refs,
                _channel,
                req_prod,
                rsp_cons,
            });
        }
        names
    }

    fn io(&mut self, m: &mut Machine, io: Io) {
        assert_eq!(self.back.shares().len(), self.queues.len(), "queues that are live");
        for i in 0..self.queues.len() {
            let at = 64 * i as u64;
            match io {
                Io::Plain => {
                    for (sector, sectors) in [(1, 1), (8, 8), (3, 5)] {
                        self.write(m, i, at + sector, sectors);
                        self.read(m, i, at + sector, sectors);
                    }
                    self.command(m, i, FLUSH);
                    assert!(self.disk.inside().platter == self.expected, "a flush leaves it on the disk");
                }
                Io::Many => {
                    // Until the indices have passed the ring's end, several at once.
                    for k in 0..u64::from(12 * self.queues[i].ring.slots / 32) {
                        let sector = 256 + (k * 88) % 2048;
                        let asked: Vec<_> = (0..5).map(|n| self.put(i, WRITE, sector + n * 88, 88)).collect();
                        self.finish(m, i, &asked);
                        self.read(m, i, sector, 88);
                    }
                }
                Io::Indirect => {
                    let asked = [self.put(i, WRITE, at, 30 * 8)];
                    self.finish(m, i, &asked);
                    self.read(m, i, at, 30 * 8);
                }
                Io::Read => {
                    for sector in [0, 8, 2000] {
                        self.read(m, i, sector, 8);
                    }
                }
                Io::BarrierAndFlush => {
                    let put = |guest: &mut Self, op| guest.put_bare(i, op, 0);
                    let asked = [put(self, BARRIER), put(self, FLUSH)];
                    self.finish(m, i, &asked);
                    assert!(self.disk.inside().platter == self.expected);
                }
                Io::StaleFlush => {
                    // Small ids, over the whole ring; then a slot that still holds an answer.
                    for _ in 0..self.queues[i].ring.slots {
                        self.read(m, i, 8, 8);
                    }
                    let queue = &mut self.queues[i];
                    let (at, id) = (queue.req_prod, 31u64);
                    queue.ring.put(at, queue.layout.id, &id.to_le_bytes());
                    queue.ring.put(at, 0, &[FLUSH]);
                    queue.ring.put(at, 2, &51712u16.to_le_bytes());
                    queue.req_prod = at.wrapping_add(1);
                    self.finish(m, i, &[(FLUSH, id)]);
                    assert!(self.disk.inside().platter == self.expected);
                }
                Io::Empty => unreachable!("a vif's"),
            }
        }
    }

    fn end(&mut self, m: &mut Machine) {
        for queue in self.queues.drain(..) {
            let Queue { ring, from, into, .. } = queue;
            for memory in [ring.into_memory(), from, into] {
                assert!(
                    m.guest.release(memory).is_ok(),
                    "our back has pages mapped that the guest takes back"
                );
            }
        }
    }
}

impl BlkGuest {
    /// Bytes that no other request has.
    fn content(&self, len: usize) -> Vec<u8> {
        (0..len).map(|k| (k ^ (k >> 9)) as u8 ^ (self.requests as u8).wrapping_mul(59)).collect()
    }

    /// A request at the next place of queue `i`, from or into its first pages; up to 11 segments,
    /// else by a list. A write's bytes are expected from now on.
    fn put(&mut self, i: usize, op: u8, sector: u64, sectors: u64) -> (u8, u64) {
        self.requests += 1;
        let bytes = self.content(sectors as usize * 512);
        let queue = &mut self.queues[i];
        let Layout { id: id_at, sector: sector_at, segments: segments_at, lists, .. } = queue.layout;
        let (at, id) = (queue.req_prod, self.requests % 24);
        let (memory, refs) =
            if op == WRITE { (&queue.from, &queue.from_refs) } else { (&queue.into, &queue.into_refs) };
        if op == WRITE {
            // Requests in flight have pages of their own, but for those that a short one shares.
            self.expected[sector as usize * 512..][..bytes.len()].copy_from_slice(&bytes);
        }
        let pages = (sectors as usize).div_ceil(8);
        let first_page = if pages == 11 { (self.requests as usize % 5) * 11 } else { 0 };
        if op == WRITE {
            assert!(memory.copy_in(first_page * PAGE_SIZE, &bytes));
        }
        let mut segments = Vec::new();
        for k in 0..pages {
            segments.extend(refs[first_page + k].0.to_le_bytes());
            let last = if k + 1 == pages { (sectors - 1) % 8 } else { 7 };
            segments.extend([0, last as u8, 0, 0]);
        }
        if pages <= 11 {
            queue.ring.put(at, 0, &[op, pages as u8]);
            queue.ring.put(at, 2, &51712u16.to_le_bytes());
            queue.ring.put(at, segments_at, &segments);
        } else {
            let list = PAGES - 1;
            assert!(queue.from.copy_in(list * PAGE_SIZE, &segments));
            queue.ring.put(at, 0, &[INDIRECT, op]);
            queue.ring.put(at, 2, &(pages as u16).to_le_bytes());
            queue.ring.put(at, lists - 4, &51712u16.to_le_bytes());
            queue.ring.put(at, lists, &queue.from_refs[list].0.to_le_bytes());
        }
        queue.ring.put(at, id_at, &id.to_le_bytes());
        queue.ring.put(at, sector_at, &sector.to_le_bytes());
        queue.req_prod = at.wrapping_add(1);
        (op, id)
    }

    fn put_bare(&mut self, i: usize, op: u8, id: u64) -> (u8, u64) {
        let queue = &mut self.queues[i];
        let at = queue.req_prod;
        queue.ring.put(at, 0, &[op, 0]);
        queue.ring.put(at, 2, &51712u16.to_le_bytes());
        queue.ring.put(at, queue.layout.id, &id.to_le_bytes());
        queue.ring.put(at, queue.layout.sector, &0u64.to_le_bytes());
        queue.req_prod = at.wrapping_add(1);
        (op, id)
    }

    /// Each of these requests must be answered once, successfully.
    fn finish(&mut self, m: &Machine, i: usize, asked: &[(u8, u64)]) {
        self.queues[i].ring.set_req_prod(self.queues[i].req_prod);
        for _ in 0..8 {
            for queue in self.back.queues() {
                queue.poll(&m.host).expect("an honest guest");
            }
        }
        let Queue { ring, req_prod, rsp_cons, .. } = &mut self.queues[i];
        let (from, to) = (*rsp_cons, ring.rsp_prod());
        assert_eq!(to, *req_prod, "answers that a guest waits for");
        *rsp_cons = to;
        ring.set_rsp_event(to.wrapping_add(1));
        let mut answers: Vec<_> = (from..to).map(|k| (ring.u8(k, 8), ring.u64(k, 0))).collect();
        let statuses: Vec<_> = (from..to).map(|k| ring.i16(k, 10)).collect();
        assert!(statuses.iter().all(|status| *status == OKAY), "{statuses:?} to {asked:?}");
        let mut asked = asked.to_vec();
        answers.sort();
        asked.sort();
        assert_eq!(answers, asked, "op and id of each answer");
    }

    fn write(&mut self, m: &Machine, i: usize, sector: u64, sectors: u64) {
        let asked = [self.put(i, WRITE, sector, sectors)];
        self.finish(m, i, &asked);
    }

    fn read(&mut self, m: &Machine, i: usize, sector: u64, sectors: u64) {
        let asked = [self.put(i, READ, sector, sectors)];
        let pages = (sectors as usize).div_ceil(8);
        let first_page = if pages == 11 { (self.requests as usize % 5) * 11 } else { 0 };
        self.finish(m, i, &asked);
        let mut bytes = vec![0; sectors as usize * 512];
        assert!(self.queues[i].into.copy_out(first_page * PAGE_SIZE, &mut bytes));
        let expected = &self.expected[sector as usize * 512..][..bytes.len()];
        assert!(bytes == expected, "{sectors} sectors from {sector} on");
    }

    fn command(&mut self, m: &Machine, i: usize, op: u8) {
        let asked = [self.put_bare(i, op, 5)];
        self.finish(m, i, &asked);
    }
}
