//! Guests at one switch, any of which attacks the others: frames above the lending threshold are
//! copied once, from one guest's pages into another's, while either of them may go at any time.
//!
//! ```text
//!   tape --operations--> guest 1 --ring, pages--> TxQueue --SwitchPort-.
//!                        guest 2                                        switch, lends
//!                        guest 3 <--ring, pages-- RxQueue --SwitchPort-'
//! ```
//! A guest sends, writes over what it sent, stands without slots, breaks its rings, dies, or is
//! detached in good order; its port moves from worker to worker. After each: a frame arrives once
//! at most, where it was sent to, in order, as it was sent; what its sender wrote over meanwhile
//! may have arrived so behind its head. An answered frame's pages have other bytes at once, which
//! no one may see. Each request is answered once; when a guest ends, nothing of it stays granted or
//! mapped, and when all had their turns, no one waits for another.

use crate::guest_pages::bytes_of;
use crate::ports::switch::{Sources, Switch, SwitchPort};
use crate::tape::{self, Tape};
use pregrant::PAGE_SIZE;
use pregrant::net::back::{Polled, SharedControl};
use pregrant::net::features::RxAccepts;
use pregrant::net::headers::MacAddr;
use pregrant::net::path::held::HEAD_BYTES;
use pregrant::net::path::{AnyPath, Chain, FrontPath, PersistentPath, StagingPath};
use pregrant::platform::Access;
use pregrant::port::{Arena, FramePort, MAX_FRAME, Offloads, PortOwner, QueueWaker};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{
    RSP_ERROR, RSP_OKAY, RxRequest, TXF_CSUM_BLANK, TXF_DATA_VALIDATED, TXF_MORE_DATA, TxRequest,
};
use pregrant_testkit::model_front::Slot;
use pregrant_testkit::two_domains::{GUEST, RxGame, TwoDomains, TxGame, Way};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Largest number of operations of one input.
const OPS: usize = 150;
/// Guests that there may be at a time.
const GUESTS: usize = 3;
/// Pages, hence buffers, that a guest sends from.
const PAGES: u16 = 20;
/// Number of bytes that identify a frame: addresses, type, number.
const NAME: usize = 30;
/// Byte with which a sender overwrites its frames. As a source address it is a group address, which
/// no guest may have.
const EVIL: u8 = 0xE7;
/// Paths of senders and receivers.
const WAYS: [Way; 3] = [Way::Staging(4096), Way::Persistent(256), Way::Staging(65535)];
const ALL: usize = GUESTS;

/// A frame that was sent.
struct Sent {
    from: usize,
    to: usize,
    /// The operation that sent it.
    at: usize,
    bytes: Vec<u8>,
    /// From this byte on it may have arrived as [`EVIL`].
    firm: usize,
    /// The checksum was blank; for a guest that does not accept that it is completed.
    blank: bool,
    /// The source address is missing, or another guest's: the frame is dropped.
    nameless: bool,
    arrived: [bool; GUESTS],
}

/// A frame on a guest's TX ring.
struct Waiting {
    /// The frame's number. None: it is no frame.
    number: Option<u32>,
    pieces: Vec<(u16, u16, u16)>,
    /// The index after its last request.
    end: u32,
}

/// A worker's doorbell, which no one waits for.
#[derive(Debug)]
struct Doorbell;

impl QueueWaker for Doorbell {
    fn ring(&self) {}
}

/// Both queues of a guest, and its port.
struct Guest {
    domains: TwoDomains,
    port: SwitchPort,
    tx: TxGame,
    waiting: VecDeque<Waiting>,
    free: VecDeque<u16>,
    rx: RxGame,
    slots: VecDeque<u16>,
    /// Every slot has a buffer.
    rx_staged: bool,
    /// For each queue: it published wrong indices, so only robustness is checked.
    lied: [bool; 2],
    /// Number of frames that arrived.
    came: u64,
    control: SharedControl,
}

fn mac(guest: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, guest as u8]
}

impl Guest {
    fn new(tape: &mut Tape<'_>, port: SwitchPort) -> Self {
        let domains = TwoDomains::new();
        let start = tape.one_of(&[0, u32::MAX - 9]);
        let way = tape.one_of(&WAYS);
        let (area, buffers) = domains.stage_some(way, Access::ReadOnly, 0, PAGES.into()).unzip();
        let chain: Chain<_> = match buffers {
            Some(buffers) => AnyPath::Staging(StagingPath::new(buffers).expect("memory")).into(),
            None => AnyPath::Persistent(
                PersistentPath::new(tape.one_of(&[256, 5]), Access::ReadOnly).expect("memory"),
            )
            .into(),
        };
        let tx = domains.tx_model_by(chain, area, start, PAGES.into());
        let way = tape.one_of(&[WAYS[0], WAYS[1], WAYS[2], Way::Copy]);
        let rx = domains.rx_model(way, start, RxAccepts::ALL);
        Self {
            tx,
            waiting: VecDeque::new(),
            free: (0..PAGES).collect(),
            rx,
            slots: (0..256).collect(),
            rx_staged: way.copy_only(),
            lied: [false; 2],
            came: 0,
            control: SharedControl::default(),
            domains,
            port,
        }
    }

    /// Writes to the page that this id's requests name.
    fn write(&self, id: u16, offset: u16, bytes: &[u8]) {
        let (memory, at): (&dyn Fn(usize) -> bool, _) = match &self.tx.area {
            Some(area) => (&|at| area.bytes().copy_in(at, bytes), area.start(id)),
            None => (&|at| self.tx.memory.copy_in(at, bytes), usize::from(id) * PAGE_SIZE),
        };
        assert!(memory(at + usize::from(offset)));
    }

    /// The worker's turn for its TX. Err: it broke its ring.
    fn poll_tx(&mut self, arena: &mut Arena) -> Result<Polled, ()> {
        let Self { domains, port, tx, control, lied, .. } = self;
        let polled = tx.back.poll(&domains.host, GUEST, &tx.chans.1, port, arena, control);
        polled.map_err(|fault| assert!(lied[0], "{fault}"))
    }

    /// The worker's turn for its RX.
    fn poll_rx(&mut self) -> Result<Polled, ()> {
        let Self { domains, port, rx, control, lied, .. } = self;
        let polled = rx.back.poll(&domains.host, GUEST, &rx.chans.1, port, control);
        polled.map_err(|fault| assert!(lied[1], "{fault}"))
    }

    /// Processes TX answers, and overwrites the frames' pages at once.
    fn reclaim(&mut self) {
        if self.lied[0] {
            return;
        }
        for statuses in self.tx.model.answers().expect("answers in order") {
            let frame = self.waiting.pop_front().expect("a frame was sent");
            let status = if frame.number.is_some() { RSP_OKAY } else { RSP_ERROR };
            assert!(statuses.iter().all(|s| *s == status), "{statuses:?} for {:?}", frame.number);
            for (id, offset, len) in frame.pieces {
                self.write(id, offset, &vec![!EVIL; len.into()]);
                // Soon again: its page stays mapped.
                self.free.push_front(id);
            }
        }
    }

    fn post(&mut self, n: usize) {
        for id in self.slots.drain(..n.min(self.slots.len())) {
            let gref = self.rx.refs[usize::from(id)].0;
            self.rx.model.post(RxRequest { id, gref });
        }
    }

    fn recv(&mut self) -> Vec<Vec<u8>> {
        if self.lied[1] {
            return Vec::new();
        }
        let frames = self.rx.model.frames().expect("answers in order");
        let bytes = frames.iter().map(|frame| {
            assert!(!frame.failed(), "all of its pages are granted: {frame:?}");
            let is_staged = self.rx_staged || frame.slots.len() == 1;
            let area = self.rx.area.as_ref().filter(|_| is_staged);
            let pieces = frame.slots.iter().map(|slot| {
                self.slots.push_back(slot.id);
                let (offset, len) = (usize::from(slot.offset), slot.status as usize);
                match area {
                    Some(area) => bytes_of(area.bytes(), area.start(slot.id) + offset, len),
                    None => bytes_of(&self.rx.memory, usize::from(slot.id) * PAGE_SIZE + offset, len),
                }
            });
            pieces.collect::<Vec<_>>().concat()
        });
        bytes.collect()
    }

    /// Ends it, with whatever is in flight.
    fn close(self, port_first: bool) {
        let (tx, rx, domains) = (self.tx, self.rx, self.domains);
        let port = (!port_first).then_some(self.port);
        tx.close();
        rx.close();
        domains.assert_empty();
        drop(port);
    }
}

struct Game {
    switch: Switch,
    guests: [Option<Guest>; GUESTS],
    /// The operation after which each was not there last.
    absent: [usize; GUESTS],
    arena: Arena,
    sent: BTreeMap<u32, Sent>,
    /// For each sender and receiver the number of the last frame that arrived.
    last: [[u32; GUESTS]; GUESTS],
    number: u32,
    op: usize,
    /// The counts of [`lent_by`], for guests that ended.
    lent: [u64; 2],
}

pub fn one_copy(data: &[u8]) {
    lent_by(data);
}

/// Plays the tape: how many frames arrived from their sender's pages, and how many zero-copy frames
/// were copied after all.
fn lent_by(data: &[u8]) -> [u64; 2] {
    let mut lent = [0; 2];
    tape::play(
        data,
        OPS,
        Game::new,
        |game, tape| {
            game.play(tape);
            true
        },
        |game| lent = game.close(),
    );
    lent
}

impl Game {
    fn new(tape: &mut Tape<'_>) -> Self {
        let switch = Switch::new();
        switch.lend_above(tape.one_of(&[1024, 128, 4000, 256]));
        let mut game = Self {
            switch,
            guests: Default::default(),
            absent: [0; GUESTS],
            arena: Arena::new(),
            sent: BTreeMap::new(),
            last: Default::default(),
            number: 0,
            op: 0,
            lent: [0; 2],
        };
        for who in 0..GUESTS {
            game.come(tape, who);
        }
        game
    }

    /// A guest connects, if there is none.
    fn come(&mut self, tape: &mut Tape<'_>, who: usize) {
        if self.guests[who].is_none() {
            let caps = tape.one_of(&[Offloads { csum: true, gso: true }, Offloads::default()]);
            let port = self.switch.add_port(caps).expect("room for a port");
            port.set_sources(Sources::Own(MacAddr(mac(who))));
            self.guests[who] = Some(Guest::new(tape, port));
            self.absent[who] = self.op;
            // It gets zero-copy frames once its port was asked for frames.
            self.rx_turn(who, 1);
        }
    }

    fn end(&mut self, who: usize, port_first: bool) {
        if let Some(guest) = self.guests[who].take() {
            let stats = guest.port.stats();
            self.lent[0] += stats.rx_lent;
            self.lent[1] += stats.unlent;
            guest.close(port_first);
        }
    }

    fn play(&mut self, tape: &mut Tape<'_>) {
        self.op += 1;
        let (op, who) = (tape.below(16), tape.below(GUESTS));
        match op {
            0..=2 => self.send(tape, who),
            3 | 4 => self.tx_turn(who, 1 + tape.below(4)),
            5 => self.reclaim(who),
            6 | 7 => self.post(tape, who),
            8 => self.rx_turn(who, 1 + tape.below(4)),
            9 => self.recv(who),
            10 => self.write_over(tape, who),
            11 => self.lie(tape, who),
            12 => self.leave(tape, who),
            13 => self.come(tape, who),
            14 => self.settle(),
            _ => self.change(tape, who),
        }
    }

    /// Sends a frame in several fragments, or something that is no frame.
    fn send(&mut self, tape: &mut Tape<'_>, who: usize) {
        let (to, len) = (tape.below(ALL + 1), tape.one_of(&LENS));
        let (offset, blank) = (tape.one_of(&[0, 64, 1000, 4000u16]), tape.below(8) == 0);
        let Some(guest) = &mut self.guests[who] else { return };
        if guest.lied[0] {
            return;
        }
        let mut pieces = Vec::new();
        let (mut left, mut offset) = (len, offset);
        while left > 0 {
            let n = left.min(PAGE_SIZE - usize::from(offset));
            let Some(id) = guest.free.pop_front() else { break };
            pieces.push((id, offset, n as u16));
            (left, offset) = (left - n, 0);
        }
        if left > 0 || guest.tx.model.free() < pieces.len() as u32 {
            return pieces.iter().for_each(|piece| guest.free.push_back(piece.0));
        }
        // No frame: it is shorter than Ethernet's header.
        let is_none = len == 0;
        self.number += 1;
        let number = self.number;
        if is_none {
            let Some(id) = guest.free.pop_front() else { return };
            pieces.push((id, 4000, 10));
        }
        let bytes = frame(who, to, len.max(CHECKSUM.end), number, blank);
        let mut rest = &bytes[..];
        let mut slots = Vec::new();
        for (k, &(id, offset, n)) in pieces.iter().enumerate() {
            let (now, later) = rest.split_at(rest.len().min(n.into()));
            guest.write(id, offset, now);
            rest = later;
            let mut flags = if k + 1 < pieces.len() { TXF_MORE_DATA } else { 0 };
            if k == 0 && blank {
                flags |= TXF_CSUM_BLANK | TXF_DATA_VALIDATED;
            }
            let size = match k {
                _ if is_none => 10,
                0 => len as u16,
                _ => n,
            };
            let gref = guest.tx.area.as_ref().map_or(guest.tx.refs[usize::from(id)].0, |_| 0);
            slots.push(Slot::Data(TxRequest { gref, offset, flags, id, size }));
        }
        guest.tx.model.play(&slots);
        let end = guest.tx.model.next_index();
        guest.waiting.push_back(Waiting { number: (!is_none).then_some(number), pieces, end });
        if !is_none {
            let (at, firm, arrived) = (self.op, len, [false; GUESTS]);
            let sent = Sent { from: who, to, at, bytes, firm, blank, nameless: false, arrived };
            self.sent.insert(number, sent);
        }
    }

    fn tx_turn(&mut self, who: usize, most: usize) {
        for _ in 0..most {
            match self.guests[who].as_mut().map(|guest| guest.poll_tx(&mut self.arena)) {
                Some(Ok(Polled::More)) => {}
                Some(Err(())) => return self.end(who, false),
                Some(Ok(_)) | None => return,
            }
        }
    }

    fn reclaim(&mut self, who: usize) {
        if let Some(guest) = &mut self.guests[who] {
            guest.reclaim();
        }
    }

    fn post(&mut self, tape: &mut Tape<'_>, who: usize) {
        let n = tape.one_of(&[1, 4, 40, 256]);
        if let Some(guest) = self.guests[who].as_mut().filter(|guest| !guest.lied[1]) {
            guest.post(n);
        }
    }

    fn rx_turn(&mut self, who: usize, most: usize) {
        for _ in 0..most {
            match self.guests[who].as_mut().map(Guest::poll_rx) {
                Some(Ok(Polled::More)) => {}
                Some(Err(())) => return self.end(who, true),
                Some(Ok(_)) | None => return,
            }
        }
    }

    /// Compares received frames with those that were sent.
    fn recv(&mut self, who: usize) {
        let mut absent = self.absent;
        (0..GUESTS).filter(|k| self.guests[*k].is_none()).for_each(|k| absent[k] = self.op);
        let Some(guest) = &mut self.guests[who] else { return };
        for mut got in guest.recv() {
            guest.came += 1;
            let number = u32::from_le_bytes(got[NAME - 4..NAME].try_into().expect("four bytes"));
            let sent = self.sent.get_mut(&number).expect("a frame that was sent");
            assert!(!sent.nameless, "{number} has no name");
            assert_ne!(sent.from, who, "{number} came back");
            assert_eq!(got.len(), sent.bytes.len(), "{number}");
            // For one that is not there it goes to all.
            let is_its = sent.to == who || sent.to == ALL || absent[sent.to] >= sent.at;
            assert!(is_its, "{number} for {} is at {who}", sent.to);
            assert!(!std::mem::replace(&mut sent.arrived[who], true), "{number} came twice");
            if sent.to == who {
                let last = &mut self.last[sent.from][who];
                assert!(*last < number, "{number} came behind {last}");
                *last = number;
            }
            if sent.blank {
                got[CHECKSUM].copy_from_slice(&sent.bytes[CHECKSUM]);
            }
            let firm = sent.firm.min(got.len());
            assert!(got[..firm] == sent.bytes[..firm], "{number} of {} bytes has others", got.len());
            let mut rest = got[firm..].iter().zip(&sent.bytes[firm..]);
            assert!(rest.all(|(got, sent)| *got == EVIL || got == sent), "{number} has others' bytes");
        }
    }

    /// Overwrites its frames without an answer, from a byte on.
    fn write_over(&mut self, tape: &mut Tape<'_>, who: usize) {
        let from = tape.one_of(&[usize::from(HEAD_BYTES), 0, NAME, 2000]);
        let Some(guest) = self.guests[who].as_ref().filter(|guest| !guest.lied[0]) else { return };
        let taken = guest.tx.back.requests();
        for frame in &guest.waiting {
            let Some(sent) = frame.number.and_then(|number| self.sent.get_mut(&number)) else { continue };
            let is_taken = taken.wrapping_sub(frame.end) as i32 >= 0;
            let firm = if is_taken { from.max(HEAD_BYTES.into()) } else { from };
            sent.firm = sent.firm.min(firm);
            sent.nameless |= firm == 0;
            let mut at = 0;
            for &(id, offset, len) in &frame.pieces {
                let skip = from.saturating_sub(at).min(len.into());
                guest.write(id, offset + skip as u16, &vec![EVIL; usize::from(len) - skip]);
                at += usize::from(len);
            }
        }
    }

    /// An index that is wrong, on either ring.
    fn lie(&mut self, tape: &mut Tape<'_>, who: usize) {
        let by = tape.one_of(&[257u32, 0x8000_0000, 1000, u32::MAX - 300]);
        let (rx, Some(guest)) = (tape.below(2), &mut self.guests[who]) else { return };
        match rx {
            0 => guest.tx.model.publish_index(guest.tx.model.next_index().wrapping_add(by)),
            _ => guest.rx.model.publish_index(guest.rx.model.next_index().wrapping_add(by)),
        }
        guest.lied[rx] = true;
    }

    /// The guest dies, or is detached.
    fn leave(&mut self, tape: &mut Tape<'_>, who: usize) {
        let (in_order, port_first) = (tape.below(2) == 1, tape.below(2) == 1);
        let Some(guest) = &mut self.guests[who] else { return };
        if in_order && !guest.lied[0] {
            let taken = guest.tx.back.requests();
            guest.tx.back.drain(&guest.domains.host, &guest.tx.chans.1);
            assert_eq!(guest.tx.model.rsp_prod(), taken, "what was taken is answered");
            guest.reclaim();
        }
        self.recv(who);
        self.end(who, port_first);
    }

    /// All have their turns: no one waits for another.
    fn settle(&mut self) {
        for who in 0..GUESTS {
            self.tx_turn(who, usize::MAX);
        }
        for who in 0..GUESTS {
            self.rx_turn(who, usize::MAX);
            self.recv(who);
        }
        for who in 0..GUESTS {
            self.tx_turn(who, usize::MAX);
            self.reclaim(who);
            if let Some(guest) = self.guests[who].as_ref().filter(|guest| !guest.lied[0]) {
                guest.tx.model.finish().expect("no one's frames wait for others");
            }
        }
    }

    /// Changes a setting of the switch, moves a port to another worker, or changes the frames that
    /// its guest accepts.
    fn change(&mut self, tape: &mut Tape<'_>, who: usize) {
        let above = tape.one_of(&[1024, 128, MAX_FRAME as u32]);
        let (what, n) = (tape.below(3), tape.below(3));
        match (what, &mut self.guests[who]) {
            (0, _) => self.switch.lend_above(above),
            (1, Some(guest)) => guest.port.owned_by(&PortOwner { worker: n, waker: Arc::new(Doorbell) }),
            (_, Some(guest)) => guest.port.set_guest_caps(Offloads { csum: n == 0, gso: n == 1 }),
            (_, None) => {}
        }
    }

    /// All that waits for a guest that is there arrives; then all go.
    fn close(mut self) -> [u64; 2] {
        self.settle();
        for who in 0..GUESTS {
            while let Some(guest) = self.guests[who].as_mut().filter(|guest| !guest.lied[1]) {
                let came = guest.came;
                guest.post(256);
                self.rx_turn(who, 1);
                self.recv(who);
                let Some(guest) = &self.guests[who] else { break };
                if guest.came == came && guest.rx.back.waiting() == 0 && !guest.port.has_frames() {
                    let given = guest.port.stats().rx_frames;
                    // A frame that was written over may have lost the place of its blank checksum.
                    let dropped = guest.rx.back.stats().dropped;
                    assert_eq!(given, came + dropped, "frames for guest {who}");
                    let blank = self.sent.values().filter(|sent| sent.blank && sent.firm < sent.bytes.len());
                    assert!(dropped <= blank.count() as u64, "{dropped} dropped for guest {who}");
                    break;
                }
            }
        }
        (0..GUESTS).for_each(|who| self.end(who, who == 1));
        self.lent
    }
}

/// The range of a UDP packet's checksum.
const CHECKSUM: Range<usize> = 40..42;

const LENS: [usize; 12] = [4096, 1500, 60, 129, 2048, 4097, 5000, 9000, 20_000, 65535, 0, 3000];

/// A frame that no other is like; with a blank checksum it is a UDP packet.
fn frame(from: usize, to: usize, len: usize, number: u32, blank: bool) -> Vec<u8> {
    let dst = if to == ALL { [0xFF; 6] } else { mac(to) };
    let mut bytes = [&dst[..], &mac(from), &[0x88, 0xB5]].concat();
    bytes.extend((bytes.len()..len).map(|k| (k ^ k >> 8).wrapping_add(number as usize * 37) as u8));
    if blank {
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes[14..26].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0]);
        bytes[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
    }
    bytes[NAME - 4..NAME].copy_from_slice(&number.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Without zero-copy frames the target would find nothing.
    #[test]
    fn the_corpus_has_frames_that_are_lent() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/one_copy");
        let mut inputs = std::fs::read_dir(corpus).expect("a folder that can be listed");
        let mut lent = [0; 2];
        // All of it is played by `tests/replay.rs`.
        while lent.contains(&0) {
            let path = inputs.next().unwrap_or_else(|| panic!("{lent:?}")).expect("a file").path();
            let [came, copied] = lent_by(&std::fs::read(path).expect("a file that can be read"));
            lent = [lent[0] + came, lent[1] + copied];
        }
    }
}
