//! Another system's net front on the rings: it fills slots as that system does, and validates every
//! answer of our back.

use super::machine::{GUEST, HOST, Machine, VIF};
use super::page::Page;
use super::script::{Grant, Io, Pair, Step, play};
use pregrant::net::back::{BackVif, VifConfig};
use pregrant::platform::local::{LocalChan, LocalDomain, LocalRegion};
use pregrant::platform::{Access, Events, GrantPool};
use pregrant::port::{Arena, Burst, FramePort, Offload, Offloads};
use pregrant::shm::SharedBytes;
use pregrant::xenbus::Side;
use pregrant::{GrantRef, PAGE_SIZE};
use std::collections::VecDeque;

const TX_SLOT: usize = 12;
const RX_SLOT: usize = 8;
/// Pages that a queue has for either way.
const PAGES: usize = 32;
const MORE_DATA: u16 = 4;
const OKAY: i16 = 0;
const ERROR: i16 = -1;

/// The port behind our back.
#[derive(Default)]
struct Net {
    took: Vec<Vec<u8>>,
    gives: VecDeque<Vec<u8>>,
}

impl FramePort for Net {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        self.took.extend(frames.iter().map(|(bytes, _)| bytes.to_vec()));
        frames.frames.len()
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let mut n = 0;
        while into.has_room()
            && let Some(bytes) = self.gives.pop_front()
        {
            assert!(into.push(&bytes, Offload::default()));
            n += 1;
        }
        n
    }
}

/// A granted page or more.
struct Granted {
    memory: LocalRegion,
    refs: Vec<GrantRef>,
}

impl Granted {
    fn new(guest: &LocalDomain, pages: usize, access: Access) -> Self {
        let mut refs = vec![GrantRef::NONE; pages];
        Self { memory: guest.alloc(HOST, access, &mut refs).unwrap(), refs }
    }
}

struct Queue {
    tx: Page<LocalRegion>,
    rx: Page<LocalRegion>,
    sends: Granted,
    receives: Granted,
    /// TX, and RX where it has one of its own.
    _channels: Vec<LocalChan>,
    req_prod: [u32; 2],
    rsp_cons: [u32; 2],
}

pub struct NetGuest {
    back: BackVif<LocalDomain>,
    queues: Vec<Queue>,
    /// A control ring, which the guest offers and does not use here.
    control: Option<(Page<LocalRegion>, LocalChan)>,
    net: Net,
    frames: u8,
}

/// Plays a front's table against our back.
pub fn play_front(steps: &[Step]) {
    let mut m = Machine::new(&VIF, Side::Back);
    let back = BackVif::new(GUEST, VIF.handle, VifConfig::default());
    let mut pair = NetGuest { back, queues: Vec::new(), control: None, net: Net::default(), frames: 0 };
    play(&mut m, &mut pair, VIF.back, steps);
    assert!(pair.queues.is_empty(), "the table ends with what it granted");
}

impl Pair for NetGuest {
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

    fn grant(
        &mut self,
        m: &mut Machine,
        Grant { queues, order, other: split, read_only }: Grant,
    ) -> Vec<(String, u32)> {
        assert_eq!((order, self.queues.len()), (0, 0), "no system has net rings of more pages");
        let mut names = Vec::new();
        let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
        for i in 0..queues {
            let rings = [(); 2].map(|()| Granted::new(&m.guest, 1, Access::ReadWrite));
            let channels: Vec<_> =
                (0..if split { 2 } else { 1 }).map(|_| m.guest.offer(HOST).unwrap()).collect();
            for (name, n) in [("tx", rings[0].refs[0].0), ("rx", rings[1].refs[0].0)] {
                names.push((format!("{name}{i}"), n));
            }
            let of_channels = if split { ["porttx", "portrx"] } else { ["port", "port"] };
            names.extend(
                channels.iter().zip(of_channels).map(|((_, port), name)| (format!("{name}{i}"), port.0)),
            );
            let [tx, rx] = rings.map(|ring| ring.memory);
            let (tx, rx) = (Page::new(tx, TX_SLOT), Page::new(rx, RX_SLOT));
            tx.init();
            rx.init();
            self.queues.push(Queue {
                tx,
                rx,
                sends: Granted::new(&m.guest, PAGES, access),
                receives: Granted::new(&m.guest, PAGES, Access::ReadWrite),
                _channels: channels.into_iter().map(|(channel, _)| channel).collect(),
                req_prod: [0; 2],
                rsp_cons: [0; 2],
            });
        }
        let ring = Granted::new(&m.guest, 1, Access::ReadWrite);
        let (channel, port) = m.guest.offer(HOST).unwrap();
        names.extend([("ctrl".into(), ring.refs[0].0), ("portctrl".into(), port.0)]);
        let page = Page::new(ring.memory, 16);
        page.init();
        self.control = Some((page, channel));
        names
    }

    fn io(&mut self, m: &mut Machine, io: Io) {
        assert_eq!(self.back.nr_queues(), self.queues.len(), "queues that are live");
        for i in 0..self.queues.len() {
            match io {
                Io::Plain => {
                    for len in [60, 300, 1514] {
                        self.send(m, i, &[len]);
                        self.receive(m, i, len);
                    }
                }
                Io::Many => {
                    for pieces in [&[700, 814][..], &[60, 4096, 4096], &[20; 17]] {
                        self.send(m, i, pieces);
                        self.receive(m, i, pieces.iter().sum());
                    }
                    // All of its pages at once, until its indices have passed the ring's end.
                    for _ in 0..20 {
                        (0..PAGES).for_each(|k| self.post(i, k));
                        self.take_posted(m, i);
                        self.send(m, i, &[1514]);
                    }
                }
                Io::Empty => self.send_empty(m, i),
                _ => unreachable!("{io:?} is a disk's"),
            }
        }
    }

    fn end(&mut self, m: &mut Machine) {
        for queue in self.queues.drain(..) {
            let Queue { tx, rx, sends, receives, .. } = queue;
            for memory in [tx.into_memory(), rx.into_memory(), sends.memory, receives.memory] {
                assert!(
                    m.guest.release(memory).is_ok(),
                    "our back has pages mapped that the guest takes back"
                );
            }
        }
        if let Some((page, _)) = self.control.take() {
            assert!(m.guest.release(page.into_memory()).is_ok(), "our back has the control ring mapped");
        }
    }
}

impl NetGuest {
    /// Bytes that no other frame has, for one station.
    fn content(&mut self, len: usize) -> Vec<u8> {
        self.frames = self.frames.wrapping_add(1);
        let byte = |k: usize| (k as u8).wrapping_mul(31) ^ self.frames.wrapping_mul(67);
        (0..len).map(|k| if k == 0 { byte(k) & !1 } else { byte(k) }).collect()
    }

    /// A TX request at the next place of queue `i`, from page `page`.
    fn put_tx(&mut self, i: usize, (page, offset): (usize, u16), flags: u16, id: u16, size: u16) {
        let queue = &mut self.queues[i];
        queue.tx.put(queue.req_prod[0], 0, &queue.sends.refs[page].0.to_le_bytes());
        for (at, field) in [(4, offset), (6, flags), (8, id), (10, size)] {
            queue.tx.put(queue.req_prod[0], at, &field.to_le_bytes());
        }
        queue.req_prod[0] = queue.req_prod[0].wrapping_add(1);
    }

    /// The answers to what was put, in order: id and status.
    fn answers(&mut self, m: &mut Machine, i: usize) -> Vec<(u16, i16)> {
        let queue = &mut self.queues[i];
        queue.tx.set_req_prod(queue.req_prod[0]);
        let host = m.host.clone();
        let mut scratch = Arena::new();
        for _ in 0..3 {
            self.back.poll_tx(&host, i, &mut self.net, &mut scratch).expect("an honest guest");
        }
        let queue = &mut self.queues[i];
        let (from, to) = (queue.rsp_cons[0], queue.tx.rsp_prod());
        assert_eq!(to, queue.req_prod[0], "answers that a guest waits for");
        queue.rsp_cons[0] = to;
        // Mini-OS asks for an event in the middle of what is in flight; others for each.
        queue.tx.set_rsp_event(to.wrapping_add(1));
        (from..to).map(|k| (queue.tx.u16(k, 0), queue.tx.i16(k, 2))).collect()
    }

    /// A frame of these pieces, each in a page of its own: its bytes come out behind the back, and
    /// each slot is answered.
    fn send(&mut self, m: &mut Machine, i: usize, pieces: &[usize]) {
        let whole: usize = pieces.iter().sum();
        let bytes = self.content(whole);
        let mut at = 0;
        for (k, len) in pieces.iter().enumerate() {
            let offset = if *len < 4000 { 66 } else { 0 };
            assert!(self.queues[i].sends.memory.copy_in(k * PAGE_SIZE + offset, &bytes[at..at + len]));
            at += len;
            let more = if k + 1 < pieces.len() { MORE_DATA } else { 0 };
            let size = if k == 0 { whole } else { *len };
            self.put_tx(i, (k, offset as u16), more, (200 + k) as u16, size as u16);
        }
        let answers = self.answers(m, i);
        let expected: Vec<_> = (0..pieces.len()).map(|k| (200 + k as u16, OKAY)).collect();
        assert_eq!(answers, expected);
        self.assert_sent(&bytes);
    }

    fn assert_sent(&mut self, bytes: &[u8]) {
        let took = std::mem::take(&mut self.net.took);
        let lens: Vec<_> = took.iter().map(Vec::len).collect();
        assert!(took == [bytes], "frames of {lens:?} bytes came out, of {} went in", bytes.len());
    }

    /// A slot of size 0 between frames is answered, and costs the vif nothing.
    fn send_empty(&mut self, m: &mut Machine, i: usize) {
        self.put_tx(i, (0, 0), 0, 7, 0);
        assert_eq!(self.answers(m, i), [(7, ERROR)]);
        self.send(m, i, &[60]);
        // And as the last piece of a frame.
        let bytes = self.content(100);
        assert!(self.queues[i].sends.memory.copy_in(0, &bytes));
        self.put_tx(i, (0, 0), MORE_DATA, 8, 100);
        self.put_tx(i, (1, 0), 0, 9, 0);
        assert_eq!(self.answers(m, i), [(8, OKAY), (9, OKAY)]);
        self.assert_sent(&bytes);
    }

    /// An RX request for page `k`, which is its id.
    fn post(&mut self, i: usize, k: usize) {
        let queue = &mut self.queues[i];
        let (id, gref) = (k as u16, queue.receives.refs[k].0);
        queue.rx.put(queue.req_prod[1], 0, &[&id.to_le_bytes(), &[0; 2][..], &gref.to_le_bytes()].concat());
        queue.req_prod[1] = queue.req_prod[1].wrapping_add(1);
    }

    /// A frame from behind the back arrives, over as many slots as it needs.
    fn receive(&mut self, m: &mut Machine, i: usize, len: usize) {
        (0..len.div_ceil(PAGE_SIZE)).for_each(|k| self.post(i, k));
        let bytes = self.content(len);
        self.net.gives.push_back(bytes.clone());
        assert!(self.arrived(m, i) == [bytes], "a frame of {len} bytes that arrives");
    }

    /// A frame for each slot that is posted.
    fn take_posted(&mut self, m: &mut Machine, i: usize) {
        let posted = self.queues[i].req_prod[1].wrapping_sub(self.queues[i].rsp_cons[1]);
        let frames: Vec<_> = (0..posted).map(|k| self.content(60 + k as usize)).collect();
        self.net.gives.extend(frames.iter().cloned());
        assert!(self.arrived(m, i) == frames, "frames that arrive");
    }

    /// What the back wrote into the guest's pages, frame by frame.
    fn arrived(&mut self, m: &mut Machine, i: usize) -> Vec<Vec<u8>> {
        let queue = &self.queues[i];
        queue.rx.set_req_prod(queue.req_prod[1]);
        let host = m.host.clone();
        for _ in 0..3 {
            self.back.poll_rx(&host, i, &mut self.net).expect("an honest guest");
        }
        let queue = &mut self.queues[i];
        let (from, to) = (queue.rsp_cons[1], queue.rx.rsp_prod());
        queue.rsp_cons[1] = to;
        queue.rx.set_rsp_event(to.wrapping_add(1));
        let (mut frames, mut frame) = (Vec::new(), Vec::new());
        for k in from..to {
            let (id, offset, flags) = (queue.rx.u16(k, 0), queue.rx.u16(k, 2), queue.rx.u16(k, 4));
            let status = queue.rx.i16(k, 6);
            assert!(status > 0, "slot {k} has status {status}");
            assert_eq!(flags & !MORE_DATA, 0, "no extra info, no checksum: the frame had none");
            let mut bytes = vec![0; status as usize];
            assert!(
                queue.receives.memory.copy_out(usize::from(id) * PAGE_SIZE + usize::from(offset), &mut bytes)
            );
            frame.append(&mut bytes);
            if flags & MORE_DATA == 0 {
                frames.push(std::mem::take(&mut frame));
            }
        }
        assert!(frame.is_empty(), "a frame without an end");
        frames
    }
}
