//! A model front for tests: writes raw slots to a ring, and reports an error if an answer is
//! repeated, missing or out of order.
//!
//! ```text
//!   test --play(slots of one frame)--> TxModel --ring--> back under test
//!        <--answers: one Vec per frame--        <-------
//! ```
//!
//! It shares no code with the drivers but the ring's words, so that a mistake of theirs is not made
//! twice. It demands more than netif does: answers in request order (docs/protocol 1.1, R1) and an
//! index that stops at frame ends only (R2), because a back that dies can be taken over only then.
//! An answer may write its own bytes of a slot and no others.

use pregrant::ring::{NetRx, NetTx, RingMem, Word};
use pregrant::wire::netif::{
    Extra, RSP_DROPPED, RSP_ERROR, RSP_NULL, RSP_OKAY, RXF_EXTRA_INFO, RXF_MORE_DATA, RxRequest, RxResponse,
    TxRequest, TxResponse,
};
use std::collections::VecDeque;
use std::fmt;

/// A back's violation. `index` is the free-running ring index of the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModelFault {
    /// `rsp_prod` passes the number of requests, or went backwards.
    Overrun {
        rsp_prod: u32,
        /// Number of requests without an answer.
        in_flight: u32,
    },
    /// `rsp_prod` stops between two slots of one frame.
    MidFrame { rsp_prod: u32 },
    /// The answer is for another request that is in flight.
    OutOfOrder {
        index: u32,
        /// The id of the request whose turn it was.
        expected: u16,
        found: u16,
    },
    /// The answer is for a request that was answered before, or never made.
    NotInFlight { index: u32, found: u16 },
    /// A slot that held an extra info is not answered with NULL.
    NotNull { index: u32, status: i16 },
    /// A data slot is answered with a status that netif does not have.
    BadStatus { index: u32, status: i16 },
    /// An answer changed bytes of the slot that only the front may write.
    SlotTouched { index: u32 },
    /// The back has no more work to do, and some requests have no answer.
    Missing { in_flight: u32 },
}

impl fmt::Display for ModelFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Overrun { rsp_prod, in_flight } => {
                write!(f, "rsp_prod {rsp_prod} with {in_flight} requests in flight")
            }
            Self::MidFrame { rsp_prod } => write!(f, "rsp_prod {rsp_prod} is inside a frame"),
            Self::OutOfOrder { index, expected, found } => {
                write!(f, "answer {index} is for id {found}, the request there has id {expected}")
            }
            Self::NotInFlight { index, found } => {
                write!(f, "answer {index} is for id {found}, not in flight")
            }
            Self::NotNull { index, status } => {
                write!(f, "answer {index}, to an extra info, has status {status} instead of NULL")
            }
            Self::BadStatus { index, status } => write!(f, "answer {index} has status {status}"),
            Self::SlotTouched { index } => write!(f, "answer {index} wrote more of its slot than a response"),
            Self::Missing { in_flight } => write!(f, "{in_flight} requests are never answered"),
        }
    }
}

impl core::error::Error for ModelFault {}

/// A TX slot to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    Data(TxRequest),
    /// A slot with an extra info, or with any other bytes in its place.
    Extra([u32; 3]),
}

impl Slot {
    /// Creates a slot with an extra info; `more` sets the flag MORE.
    pub fn extra(extra: Extra, more: bool) -> Self {
        Self::Extra(extra.to_tx_words(more))
    }

    fn words(self) -> [u32; 3] {
        match self {
            Self::Data(req) => req.to_words(),
            Self::Extra(words) => words,
        }
    }
}

fn start<M: RingMem>(mem: &M, index: u32) {
    mem.store(Word::ReqProd, index);
    mem.store(Word::RspProd, index);
}

pub struct TxModel<M> {
    mem: M,
    req_prod: u32,
    rsp_cons: u32,
    /// Frames without an answer, oldest first.
    frames: VecDeque<Vec<Slot>>,
}

impl<M: RingMem<Kind = NetTx>> TxModel<M> {
    /// Uses a ring whose page was just initialised.
    pub fn new(mem: M) -> Self {
        Self::starting_at(mem, 0)
    }

    /// Uses an initialised ring whose indices start at `index`, to test their wrap.
    pub fn starting_at(mem: M, index: u32) -> Self {
        start(&mem, index);
        Self { mem, req_prod: index, rsp_cons: index, frames: VecDeque::new() }
    }

    /// Returns the number of free slots on the ring.
    pub fn free(&self) -> u32 {
        self.mem.size() - self.in_flight()
    }

    /// Number of slots without an answer.
    pub fn in_flight(&self) -> u32 {
        self.req_prod.wrapping_sub(self.rsp_cons)
    }

    /// Writes the slots of one frame, and publishes them to the back.
    pub fn play(&mut self, slots: &[Slot]) {
        self.write(slots);
        self.publish();
    }

    /// Writes the slots of one frame without publishing them.
    pub fn write(&mut self, slots: &[Slot]) {
        assert!(slots.len() as u32 <= self.free(), "the model's ring is full: take the answers first");
        for slot in slots {
            self.mem.write::<3>(self.req_prod, slot.words());
            self.req_prod = self.req_prod.wrapping_add(1);
        }
        self.frames.push_back(slots.to_vec());
    }

    /// Publishes the slots that were written.
    pub fn publish(&self) {
        self.mem.store(Word::ReqProd, self.req_prod);
    }

    /// Writes any value to `req_prod`, as a hostile front may.
    pub fn publish_index(&self, req_prod: u32) {
        self.mem.store(Word::ReqProd, req_prod);
    }

    /// The ring index of the next request.
    pub fn next_index(&self) -> u32 {
        self.req_prod
    }

    /// Returns the value of `rsp_prod` that the back published last.
    pub fn rsp_prod(&self) -> u32 {
        self.mem.load(Word::RspProd)
    }

    /// The ring's memory, for a test that writes what no front would write.
    pub fn mem(&self) -> &M {
        &self.mem
    }

    /// Takes the answers that have arrived: for each frame, the status of each of its slots.
    pub fn answers(&mut self) -> Result<Vec<Vec<i16>>, ModelFault> {
        let rsp_prod = self.mem.load(Word::RspProd);
        let n = rsp_prod.wrapping_sub(self.rsp_cons);
        if n > self.in_flight() {
            return Err(ModelFault::Overrun { rsp_prod, in_flight: self.in_flight() });
        }
        let mut answered = Vec::new();
        while self.rsp_cons != rsp_prod {
            let frame = self.frames.front().map(Vec::as_slice).unwrap_or_default();
            if frame.len() as u32 > rsp_prod.wrapping_sub(self.rsp_cons) {
                return Err(ModelFault::MidFrame { rsp_prod });
            }
            let mut statuses = Vec::new();
            for (k, slot) in frame.iter().enumerate() {
                statuses.push(self.check(self.rsp_cons.wrapping_add(k as u32), slot)?);
            }
            self.rsp_cons = self.rsp_cons.wrapping_add(statuses.len() as u32);
            self.frames.pop_front();
            answered.push(statuses);
        }
        Ok(answered)
    }

    fn check(&self, index: u32, asked: &Slot) -> Result<i16, ModelFault> {
        let words = self.mem.read::<3>(index);
        let TxResponse { id, status } = TxResponse::from_word(words[0]);
        if words[1..] != asked.words()[1..] {
            return Err(ModelFault::SlotTouched { index });
        }
        match asked {
            Slot::Extra(_) if status == RSP_NULL => Ok(status),
            Slot::Extra(_) => Err(ModelFault::NotNull { index, status }),
            Slot::Data(req) if req.id != id => {
                let mut waiting = self.frames.iter().flatten().skip_while(|s| *s != asked).skip(1);
                if waiting.any(|s| matches!(s, Slot::Data(r) if r.id == id)) {
                    Err(ModelFault::OutOfOrder { index, expected: req.id, found: id })
                } else {
                    Err(ModelFault::NotInFlight { index, found: id })
                }
            }
            Slot::Data(_) if [RSP_OKAY, RSP_ERROR, RSP_DROPPED].contains(&status) => Ok(status),
            Slot::Data(_) => Err(ModelFault::BadStatus { index, status }),
        }
    }

    /// Called when the back has nothing left to do: returns an error if a request has no answer.
    pub fn finish(&self) -> Result<(), ModelFault> {
        match self.in_flight() {
            0 => Ok(()),
            in_flight => Err(ModelFault::Missing { in_flight }),
        }
    }
}

/// A frame that a back delivered.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RxFrame {
    /// The answers of the frame's data slots.
    pub slots: Vec<RxResponse>,
    pub extras: Vec<Extra>,
}

impl RxFrame {
    /// Returns true if the status of a slot is an error.
    pub fn failed(&self) -> bool {
        self.slots.iter().any(|s| s.status < 0)
    }

    /// Returns the number of the frame's bytes, if it has not failed.
    pub fn bytes(&self) -> usize {
        self.slots.iter().map(|s| s.status.max(0) as usize).sum()
    }
}

pub struct RxModel<M> {
    mem: M,
    req_prod: u32,
    rsp_cons: u32,
    /// Requests without an answer, oldest first.
    posted: VecDeque<RxRequest>,
}

impl<M: RingMem<Kind = NetRx>> RxModel<M> {
    /// Uses a ring whose page was just initialised.
    pub fn new(mem: M) -> Self {
        Self::starting_at(mem, 0)
    }

    /// Uses an initialised ring whose indices start at `index`, to test their wrap.
    pub fn starting_at(mem: M, index: u32) -> Self {
        start(&mem, index);
        Self { mem, req_prod: index, rsp_cons: index, posted: VecDeque::new() }
    }

    /// Returns the number of free slots on the ring.
    pub fn free(&self) -> u32 {
        self.mem.size() - self.in_flight()
    }

    /// Number of requests without an answer.
    pub fn in_flight(&self) -> u32 {
        self.req_prod.wrapping_sub(self.rsp_cons)
    }

    /// The ring index of the next request.
    pub fn next_index(&self) -> u32 {
        self.req_prod
    }

    /// Writes any value to `req_prod`, as a hostile front may.
    pub fn publish_index(&self, req_prod: u32) {
        self.mem.store(Word::ReqProd, req_prod);
    }

    /// Posts one request, and publishes it to the back.
    pub fn post(&mut self, req: RxRequest) {
        assert!(self.free() > 0, "the model's ring is full: take the answers first");
        self.mem.write::<2>(self.req_prod, req.to_words());
        self.req_prod = self.req_prod.wrapping_add(1);
        self.posted.push_back(req);
        self.mem.store(Word::ReqProd, self.req_prod);
    }

    /// Takes the frames that have arrived.
    pub fn frames(&mut self) -> Result<Vec<RxFrame>, ModelFault> {
        let rsp_prod = self.mem.load(Word::RspProd);
        let n = rsp_prod.wrapping_sub(self.rsp_cons);
        if n > self.in_flight() {
            return Err(ModelFault::Overrun { rsp_prod, in_flight: self.in_flight() });
        }
        let mut frames = Vec::new();
        while self.rsp_cons != rsp_prod {
            let mut frame = RxFrame::default();
            let mut extra = false;
            loop {
                if self.rsp_cons == rsp_prod {
                    return Err(ModelFault::MidFrame { rsp_prod });
                }
                let index = self.rsp_cons;
                let asked = self.posted.pop_front().unwrap_or_default();
                self.rsp_cons = index.wrapping_add(1);
                let words = self.mem.read::<2>(index);
                let rsp = RxResponse::from_words(words);
                if extra {
                    let (info, more) = Extra::parse(words)
                        .map_err(|_| ModelFault::BadStatus { index, status: rsp.status })?;
                    frame.extras.push(info);
                    extra = more;
                } else {
                    if rsp.id != asked.id {
                        return Err(if self.posted.iter().any(|r| r.id == rsp.id) {
                            ModelFault::OutOfOrder { index, expected: asked.id, found: rsp.id }
                        } else {
                            ModelFault::NotInFlight { index, found: rsp.id }
                        });
                    }
                    extra = frame.slots.is_empty() && rsp.flags & RXF_EXTRA_INFO != 0;
                    frame.slots.push(rsp);
                }
                let more = frame.slots.last().is_some_and(|s| s.flags & RXF_MORE_DATA != 0);
                if !extra && !more {
                    break;
                }
            }
            frames.push(frame);
        }
        Ok(frames)
    }

    /// Called when the back has nothing left to do and has used every slot: returns an error if a
    /// request has no answer.
    pub fn finish(&self) -> Result<(), ModelFault> {
        match self.in_flight() {
            0 => Ok(()),
            in_flight => Err(ModelFault::Missing { in_flight }),
        }
    }
}
