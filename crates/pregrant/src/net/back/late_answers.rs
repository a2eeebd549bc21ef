//! Answers that are held back: those of frames whose pages a path still holds, and all later ones,
//! since net answers in request order (docs/protocol 1.1, R1).
//!
//! ```text
//!   frames:  [held][done][held][done] ...      only the done ones at the head may be answered
//! ```
//! They are bounded by the ring, since an unanswered request keeps its slot.

use crate::bounded::{Bounded, BoundedQueue};
use crate::error::PlatformError;
use crate::net::batch::TxBatch;
use crate::port::Token;
use crate::wire::netif::TxResponse;

/// A frame that waits, with the number of its answers.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    nr_rsps: u16,
    token: Token,
    /// Whether a path still holds pages of the frame.
    is_held: bool,
    /// Whether the frame was passed to the port.
    given: bool,
}

/// The waiting answers of one TX ring. It allocates once.
#[derive(Debug)]
pub struct LateAnswers {
    rsps: BoundedQueue<TxResponse>,
    /// In the order of their tokens, counted from the first one's: the batches of a queue have
    /// increasing serial numbers, which wrap as tokens do, and frames of a batch have increasing
    /// indices. All tokens are this queue's: a successor's queue has new batches and starts without
    /// frames.
    frames: BoundedQueue<Waiting>,
    given: u32,
}

impl LateAnswers {
    /// Creates an empty list for a ring of `size` slots.
    pub fn new(size: u32) -> Result<Self, PlatformError> {
        let n = size as usize;
        Ok(Self { rsps: BoundedQueue::new(n)?, frames: BoundedQueue::new(n)?, given: 0 })
    }

    /// True if no frame waits.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Number of waiting frames that were passed to the port.
    #[inline(always)]
    pub fn given(&self) -> u32 {
        self.given
    }

    /// Appends the answers of a whole batch.
    pub fn push(&mut self, batch: &TxBatch) {
        for i in 0..batch.nr_frames {
            let rsps = batch.answers_of(i);
            let has_room = self.frames.room() > 0 && self.rsps.room() >= rsps.len();
            debug_assert!(has_room, "what is not answered has a slot of the ring");
            if !has_room {
                return; // what is answered stays in order
            }
            rsps.iter().for_each(|rsp| self.rsps.put(*rsp));
            let is_held = batch.held >> i & 1 != 0;
            let given = batch.given() >> i & 1 != 0;
            self.given += u32::from(given);
            let token = batch.token(i);
            self.frames.put(Waiting { nr_rsps: rsps.len() as u16, token, is_held, given });
        }
    }

    /// Marks frames that their paths have released.
    pub fn release(&mut self, done: &[Token]) {
        let first = self.frames.front().map_or(0, |frame| frame.token.0);
        let place = |token: Token| token.0.wrapping_sub(first);
        for token in done {
            if let Ok(at) = self.frames.binary_search_by_key(&place(*token), |frame| place(frame.token))
                && let Some(frame) = self.frames.get_mut(at)
            {
                frame.is_held = false;
            }
        }
    }

    /// Takes the answers of the oldest frames that are done, whole frames only, at most `most`
    /// answers. Returns how many of these frames were passed to the port.
    pub fn take(&mut self, most: usize, out: &mut Bounded<TxResponse>) -> u32 {
        out.clear();
        let most = most.min(out.room());
        let before = self.given;
        while let Some(f) = self.frames.front() {
            if f.is_held || out.len() + f.nr_rsps as usize > most {
                break;
            }
            for _ in 0..f.nr_rsps {
                let rsp = self.rsps.pop_front();
                debug_assert!(rsp.is_some(), "a frame comes with its answers");
                if let Some(rsp) = rsp {
                    out.put(rsp);
                }
            }
            self.given -= u32::from(f.given);
            self.frames.pop_front();
        }
        before - self.given
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::batch::{Todo, TxFrame};
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// Creates a batch of frames with these numbers of answers. The ids of its requests count from
    /// `first_id`, which is also the serial number of the batch.
    fn batch(first_id: u16, nr_rsps: &[u16], held: Todo) -> TxBatch {
        let mut batch = TxBatch::new().expect("memory");
        (batch.held, batch.nr_frames, batch.serial) = (held, nr_rsps.len(), first_id.into());
        let mut at = 0;
        for (frame, &n) in batch.frames.iter_mut().zip(nr_rsps) {
            *frame = TxFrame { first_rsp: at, nr_rsps: n, ..TxFrame::default() };
            at += n;
        }
        for (k, rsp) in batch.rsps[..at as usize].iter_mut().enumerate() {
            rsp.id = first_id + k as u16;
        }
        *batch
    }

    /// The tokens of frames, each given by the serial number of its batch and its index there.
    fn tokens(of: &[(u64, u64)]) -> Vec<Token> {
        of.iter().map(|(batch, i)| Token(batch << 6 | i)).collect()
    }

    fn ids(late: &mut LateAnswers, most: usize) -> Vec<u16> {
        let mut out = Bounded::new(4096).expect("memory");
        late.take(most, &mut out);
        out.iter().map(|r| r.id).collect()
    }

    /// Frames are released in any order and answered in the order of the requests, across batches,
    /// too.
    #[test]
    fn what_is_done_early_waits_for_what_came_before() {
        let mut late = LateAnswers::new(256).expect("memory");
        late.push(&batch(0, &[1, 2, 1, 1], 0b0101)); // held: ids 0 and 3
        late.push(&batch(10, &[1, 1], 0b10)); // held: id 11
        late.release(&tokens(&[(10, 1), (0, 2)]));
        assert_eq!(ids(&mut late, 256), [0u16; 0]);
        late.release(&tokens(&[(0, 0)]));
        assert_eq!(ids(&mut late, 256), [0, 1, 2, 3, 4, 10, 11]);
        assert!(late.is_empty());
    }

    #[test]
    fn frames_at_the_head_do_not_wait() {
        let mut late = LateAnswers::new(256).expect("memory");
        late.push(&batch(0, &[1, 3, 1], 0b100));
        assert_eq!(ids(&mut late, 256), [0, 1, 2, 3]);
        assert!(!late.is_empty());
        late.release(&tokens(&[(0, 2)]));
        assert_eq!(ids(&mut late, 256), [4]);
    }

    /// Frames that failed, or are no frames, never reached the port; the others count as the port's
    /// until they are answered.
    #[test]
    fn what_the_port_had_is_counted_until_it_is_answered() {
        let mut late = LateAnswers::new(256).expect("memory");
        let mut out = Bounded::new(256).expect("memory");
        let mut first = batch(0, &[1, 1, 1, 1], 0b0100); // held: id 2
        (first.failed, first.no_frame) = (0b0001, 0b1000);
        late.push(&first);
        late.push(&batch(10, &[1, 1], 0));
        assert_eq!((late.given(), late.take(256, &mut out), late.given()), (4, 1, 3));
        late.release(&tokens(&[(0, 2)]));
        assert_eq!((late.take(256, &mut out), late.given(), late.is_empty()), (3, 0, true));
    }

    /// Each publication ends with a whole frame, however little fits.
    #[test]
    fn only_whole_frames_are_taken() {
        let mut late = LateAnswers::new(256).expect("memory");
        late.push(&batch(0, &[2, 2, 3], 0));
        assert_eq!(ids(&mut late, 3), [0, 1]);
        assert_eq!(ids(&mut late, 1), [0u16; 0]);
        assert_eq!(ids(&mut late, 5), [2, 3, 4, 5, 6]);
    }

    proptest! {
        /// Compares with a list of frames that is searched from its beginning. Tokens of other
        /// frames change nothing, and serial numbers may wrap.
        #[test]
        fn what_is_released_is_found_by_its_token(
            before_wrap in 0u64..6,
            acts in prop::collection::vec((any::<bool>(), any::<u64>(), any::<u64>()), 1..20),
        ) {
            let mut late = LateAnswers::new(4096).expect("memory");
            let mut model: Vec<(Token, bool, u16)> = vec![];
            let mut serial = (u64::MAX >> 6) - before_wrap;
            let (mut first_id, mut done) = (0, vec![]);
            for (pushes, x, y) in acts {
                if pushes {
                    // Some batches have no frame, and some numbers no batch.
                    serial = (serial + 1 + x % 2) & (u64::MAX >> 6);
                    let n = (x >> 8) as usize % 65;
                    let mut next = batch(first_id, &vec![1; n], y);
                    next.serial = serial;
                    late.push(&next);
                    let frame = |i| (next.token(i), y >> i & 1 != 0, first_id + i as u16);
                    model.extend((0..n).map(frame));
                    first_id += n as u16;
                } else {
                    done.extend(model.iter().filter(|(token, ..)| (token.0 ^ x) % 3 == 0).map(|f| f.0));
                    done.extend([Token(x), Token(y)]);
                    if y % 2 == 0 {
                        done.reverse();
                    }
                    for (token, is_held, _) in &mut model {
                        *is_held &= !done.contains(token);
                    }
                    late.release(&done);
                    done.clear();
                }
                let ready = model.iter().position(|(_, is_held, _)| *is_held).unwrap_or(model.len());
                let ready: Vec<u16> = model.drain(..ready).map(|(.., id)| id).collect();
                prop_assert_eq!(ids(&mut late, 4096), ready);
                prop_assert_eq!(late.is_empty(), model.is_empty());
            }
        }
    }
}
