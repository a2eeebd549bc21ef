//! The guest asks anything on the control ring, changes the pages that it names, writes a wrong
//! index; and the back dies in between and is taken up by another one.
//!
//! The answers are those of docs/protocol 2.11, computed here by a second, plain reading of it: one
//! for each request, in order. A back that takes the ring up goes on with what its predecessor
//! answered, no more and no less. With what was set each frame has the hash that the algorithm
//! says, bit by bit, and a queue that is there.

use crate::guest_pages::{GuestPages, Right};
use crate::tape::{self, Tape};
use pregrant::net::back::control_page::CONTROL_BYTES;
use pregrant::net::back::control_ring::CtrlRing;
use pregrant::net::back::multicast::MulticastList;
use pregrant::net::back::{ControlPage, Polled, SharedControl};
use pregrant::platform::local::{LocalChan, LocalDomain, Pages};
use pregrant::platform::{Access, Events, GrantPool, PeerMem};
use pregrant::ring::{NetCtrl, RingMem, RingPages, Word};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif_ctrl::{CtrlRequest, CtrlResponse, CtrlStatus};
use pregrant::{EvtchnPort, GrantRef, PAGE_SIZE, PeerFault};
use pregrant_testkit::two_domains::{GUEST, HOST, Ring, TwoDomains};

/// Largest number of operations of one input.
const OPS: usize = 300;
/// Pages that requests may name.
const PAGES: usize = 4;
/// Number of slots of the ring.
const SLOTS: u32 = 128;
/// Largest number of entries of the table from hash to queue.
const TABLE: u32 = 128;
/// Largest length of the key in bytes.
const KEY: u32 = 40;

/// The settings, by a plain reading of the rules.
struct Rules {
    toeplitz: bool,
    flags: u32,
    key: [u8; KEY as usize],
    table: Vec<u32>,
}

struct Game {
    domains: TwoDomains,
    ring: Ring<NetCtrl>,
    ring_ref: GrantRef,
    /// The guest's event channel and its port. The back's end is closed and bound again.
    chan: (LocalChan, EvtchnPort),
    req_prod: u32,
    cons: u32,
    lying: bool,
    queues: usize,
    back: Option<(CtrlRing<LocalDomain>, SharedControl)>,
    page: Pages,
    pages: GuestPages,
    rules: Rules,
    next_id: u16,
}

pub fn ctrl_ring(data: &[u8]) {
    tape::play(data, OPS, Game::new, |game, tape| game.play(tape).is_ok(), Game::close);
}

impl Game {
    fn new(tape: &mut Tape<'_>) -> Self {
        let domains = TwoDomains::new();
        let start = if tape.below(2) == 0 { 0 } else { u32::MAX - u32::from(tape.u8()) };
        let queues = 1 + tape.below(4);
        let mut ring_ref = [GrantRef::NONE];
        let memory = domains.guest.alloc(HOST, Access::ReadWrite, &mut ring_ref).expect("a ring page");
        let ring = RingPages::new(memory);
        ring.init();
        for word in [Word::ReqProd, Word::RspProd] {
            ring.store(word, start);
        }
        let mut game = Self {
            ring,
            ring_ref: ring_ref[0],
            chan: domains.guest.offer(HOST).expect("a channel"),
            req_prod: start,
            cons: start,
            lying: false,
            queues,
            back: None,
            page: Pages::new(CONTROL_BYTES / PAGE_SIZE),
            pages: GuestPages::new(&domains, PAGES, Right::Read),
            rules: Rules { toeplitz: false, flags: 0, key: [0; KEY as usize], table: Vec::new() },
            next_id: 0,
            domains,
        };
        let control = SharedControl::default();
        control.lock().set_queues(queues);
        control.lock().keep(ControlPage::new(game.page.clone()).expect("a page"));
        let ring = game.attach(None).expect("a fresh ring");
        control.lock().begin(ring.rsp_prod(), MulticastList::default()).expect("memory");
        game.back = Some((ring, control));
        game
    }

    fn attach(&self, last: Option<(u32, CtrlResponse)>) -> Result<CtrlRing<LocalDomain>, PeerFault> {
        let host = &self.domains.host;
        let map = host.map(GUEST, &[self.ring_ref], Access::ReadWrite).expect("the ring is granted");
        let chan = host.bind(GUEST, self.chan.1).expect("the channel is offered");
        CtrlRing::attach(RingPages::new(map), chan, last, 0)
    }

    /// Plays one operation. `Err`: the back reported a fault, and was right.
    fn play(&mut self, tape: &mut Tape<'_>) -> Result<(), PeerFault> {
        match tape.below(12) {
            0..=3 => self.ask(tape),
            4 => {
                let words = [tape.u32(), tape.u32(), tape.u32(), tape.u32()];
                self.push(words);
            }
            5 => {
                let right = tape.one_of(&[Right::None, Right::Read, Right::Write, Right::Stranger]);
                self.pages.grant(&self.domains, tape.below(PAGES), right);
            }
            // A page as a table or a key: small numbers, or any bytes.
            6 => {
                let (page, bytes) = (tape.below(PAGES), tape.string());
                assert!(self.pages.region.copy_in(page * PAGE_SIZE, bytes));
            }
            7 => {
                let (page, entry) = (tape.below(PAGES), u32::from(tape.u8()));
                let table: Vec<u8> = (0..TABLE).flat_map(|k| ((k * 7 + entry) % 5).to_le_bytes()).collect();
                assert!(self.pages.region.copy_in(page * PAGE_SIZE, &table));
            }
            8 => {
                self.ring.store(tape.one_of(&[Word::ReqEvent, Word::RspEvent]), tape.u32());
                let word = 4 + tape.below(12);
                assert!(self.pages.region.store_u32(4 * word, tape.u32()));
            }
            9 => {
                let by = tape.one_of(&[1u32, 128, 129, 0x8000_0000, u32::MAX]) ^ u32::from(tape.u8());
                self.ring.store(Word::ReqProd, self.req_prod.wrapping_add(by));
                self.lying = true;
                self.run()?;
            }
            10 => self.die(tape.below(2) == 0)?,
            _ => self.run()?,
        }
        self.frame(tape);
        Ok(())
    }

    /// Writes a request that is valid, except perhaps for one number.
    fn ask(&mut self, tape: &mut Tape<'_>) {
        let msg_type = u16::from(tape.u8() % 12);
        let gref = self.pages.gref(tape.below(PAGES));
        let small = u32::from(tape.u8());
        let odd = tape.one_of(&[0, 1, 40, 41, 128, 129, 1024, u32::MAX, u32::MAX - 7, 0x4000_0000]);
        let data = match msg_type {
            3 => [gref, if small & 0x80 == 0 { small } else { odd }, 0],
            6 => match tape.below(3) {
                0 => [gref, small, odd],
                1 => [gref, odd, small],
                _ => [gref, small & 0x7F, u32::from(tape.u8())],
            },
            _ => [if small & 0x80 == 0 { small } else { odd }, gref, 0],
        };
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        self.push(CtrlRequest { id, msg_type, data }.to_words());
    }

    fn push(&mut self, words: [u32; 4]) {
        self.ring.write::<4>(self.req_prod, words);
        self.req_prod = self.req_prod.wrapping_add(1);
    }

    fn show(&self) -> u32 {
        if !self.lying {
            self.ring.store(Word::ReqProd, self.req_prod);
        }
        self.ring.load(Word::ReqProd).wrapping_sub(self.cons)
    }

    /// Shows the back what was pushed, and polls until nothing moves.
    fn run(&mut self) -> Result<(), PeerFault> {
        let shown = self.show();
        let Some((ring, control)) = &mut self.back else { return Ok(()) };
        let mut moved = true;
        while moved {
            let before: Vec<[u32; 4]> =
                (0..shown.min(SLOTS)).map(|k| self.ring.read::<4>(self.cons.wrapping_add(k))).collect();
            let start = self.cons;
            match ring.poll(&self.domains.host, GUEST, control, None) {
                Ok(polled) => moved = polled == Polled::More,
                Err(e) => {
                    assert!(shown > SLOTS, "{e} where there is no fault");
                    return Err(e);
                }
            }
            assert!(shown <= SLOTS, "an index that cannot be");
            let end = self.ring.load(Word::RspProd);
            assert_eq!(moved, end != start, "requests that are not read");
            let mut k = 0;
            while self.cons != end {
                let asked = before[k];
                let due = self.rules.answer(&self.domains, self.queues, CtrlRequest::from_words(asked));
                let found: [u32; 4] = self.ring.read::<4>(self.cons);
                assert_eq!(CtrlResponse::from_words([found[0], found[1], found[2]]), due, "{asked:?}");
                assert_eq!(found[3], asked[3], "bytes of the slot that are the front's");
                self.cons = self.cons.wrapping_add(1);
                k += 1;
            }
        }
        if self.lying {
            self.req_prod = self.cons;
            self.lying = false;
        }
        assert_eq!(self.cons, self.req_prod, "requests without an answer");
        Ok(())
    }

    /// The back dies, perhaps between computing an answer and publishing it, and another one takes
    /// over the ring.
    fn die(&mut self, with_an_answer: bool) -> Result<(), PeerFault> {
        let Some((ring, control)) = self.back.take() else { return Ok(()) };
        let shown = self.show();
        let kept = with_an_answer && shown > 0 && shown <= SLOTS;
        if kept {
            let request = CtrlRequest::from_words(self.ring.read::<4>(self.cons));
            let next = self.cons.wrapping_add(1);
            let answer = control.answer(&self.domains.host, GUEST, &request, next);
            assert_eq!(answer, self.rules.answer(&self.domains, self.queues, request));
        }
        drop((ring, control));
        let control = SharedControl::default();
        control.lock().set_queues(self.queues);
        control.lock().keep(ControlPage::new(self.page.clone()).expect("a page"));
        let last = control.lock().resume();
        assert!(last.is_some(), "what was kept is there");
        let ring = self.attach(last);
        assert_eq!(ring.is_err(), shown > SLOTS);
        let ring = ring?;
        assert_eq!(self.ring.load(Word::RspProd).wrapping_sub(self.cons), u32::from(kept), "answers");
        assert_eq!(ring.rsp_prod(), self.ring.load(Word::RspProd));
        self.cons = ring.rsp_prod();
        self.back = Some((ring, control));
        Ok(())
    }

    /// A frame has the hash and the queue that the guest set.
    fn frame(&self, tape: &mut Tape<'_>) {
        let Some((_, control)) = &self.back else { return };
        let control = control.lock();
        let r = &self.rules;
        assert_eq!(control.hash().is_on(), r.toeplitz && r.flags != 0);
        assert_eq!(control.hash().mapping().iter().map(|q| u32::from(*q)).collect::<Vec<_>>(), r.table);
        let ports = tape.u8();
        let (mut frame, mut input) = ([0; 74], [0; 12]);
        frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, 6]);
        for (k, byte) in input.iter_mut().enumerate() {
            *byte = ports.wrapping_mul(k as u8 + 1);
        }
        frame[26..38].copy_from_slice(&input);
        let found = control.hash().hash(&frame);
        let due = match r.flags {
            f if f & 2 != 0 => Some((1, r.hash(&input))),
            f if f & 1 != 0 => Some((0, r.hash(&input[..8]))),
            _ => None,
        };
        assert_eq!(found.map(|h| (h.hash_type, h.value)), due);
        let hash = found.map_or(0, |h| h.value);
        let queue = control.hash().queue(hash, self.queues);
        let n = r.table.len();
        let table = if n == 0 { hash as usize } else { r.table[hash as usize % n] as usize };
        assert_eq!(queue, table % self.queues);
    }

    fn close(self) {
        let Self { domains, ring, chan, back, pages, .. } = self;
        drop((back, chan));
        pages.close(&domains);
        assert!(domains.guest.release(ring.into_pages()).is_ok());
        domains.assert_empty();
    }
}

impl Rules {
    /// Does what the request asks, and gives the answer.
    fn answer(&mut self, domains: &TwoDomains, queues: usize, req: CtrlRequest) -> CtrlResponse {
        use CtrlStatus::{InvalidParameter, NotSupported, Success};
        let [a, b, c] = req.data;
        let mut data = 0;
        let page = |len: u32| match len {
            0 => Some(Vec::new()),
            _ if a == 0 => None,
            len => crate::guest_pages::granted(domains, a, 0, len as usize),
        };
        let status = match req.msg_type {
            1 if self.toeplitz => {
                data = 0xF;
                Success
            }
            2 if self.toeplitz && a <= 0xF => {
                self.flags = a;
                Success
            }
            3 if b > KEY => CtrlStatus::BufferOverflow,
            3 => match page(b) {
                Some(key) => {
                    self.key = [0; KEY as usize];
                    self.key[..key.len()].copy_from_slice(&key);
                    Success
                }
                None => InvalidParameter,
            },
            4 => {
                data = TABLE;
                Success
            }
            5 if a <= TABLE => {
                self.table = vec![0; a as usize];
                Success
            }
            6 if b > TABLE => CtrlStatus::BufferOverflow,
            6 if u64::from(b) + u64::from(c) > self.table.len() as u64 => InvalidParameter,
            6 => match page(b * 4) {
                Some(bytes) => {
                    let words = bytes.chunks_exact(4);
                    let entries: Vec<u32> =
                        words.map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect();
                    if entries.iter().all(|&q| (q as usize) < queues) {
                        self.table[c as usize..(c + b) as usize].copy_from_slice(&entries);
                        Success
                    } else {
                        InvalidParameter
                    }
                }
                None => InvalidParameter,
            },
            7 if a <= 1 => {
                self.toeplitz = a == 1;
                Success
            }
            2 | 5 | 7 => InvalidParameter,
            _ => NotSupported,
        };
        CtrlResponse::to(&req, status, data)
    }

    /// Toeplitz as it is defined: for each bit of the input that is set, the 32 bits of the key
    /// from there on.
    fn hash(&self, input: &[u8]) -> u32 {
        let bit = |bytes: &[u8], k: usize| bytes.get(k / 8).is_some_and(|o| o >> (7 - k % 8) & 1 == 1);
        let window = |from: usize| (0..32).fold(0, |w, k| w << 1 | u32::from(bit(&self.key, from + k)));
        (0..input.len() * 8).filter(|&k| bit(input, k)).fold(0, |hash, k| hash ^ window(k))
    }
}
