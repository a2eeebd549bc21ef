//! Whose turn it is, when several vifs want one worker: shares of its time, and not of batches.
//!
//! A batch of short staged frames takes a microsecond, one of long frames by grant copy fifty: a turn each would leave
//! the one guest a fiftieth of the worker. So a vif that is ahead of the one that was served least waits until that one
//! has caught up, or has had nothing to do for `PATIENCE_NS`: a guest that fills its ring as fast as it is emptied
//! looks idle for moments, and each of them would cost it a long batch of the other's.
//!
//! What a request costs also depends on where the pages of a guest happen to lie: guests that do the same differ by a fifth
//! (`pregrant bench fairness`). So a vif whose requests lately cost about what most turns pay for theirs ([`Price`]) is charged
//! as those are, and vifs that do the same get as many frames as each other, also when the worker was away in the middle of a
//! turn. Whoever costs more or less is charged its time.
//!
//! ```text
//!   what a vif's requests cost lately, to the median of all turns:   ... 2/3 .................. 3/2 ...
//!   charged                                                          time | requests * median | time
//! ```
//!
//! What a guest may do: ask for all of the worker, or for a frame now and then, so that others wait for it. Both count
//! against its own share, waiting included. One whose requests cost up to half more than most takes up to that much more
//! of the time. Time that a vif did not want is not saved up, but for `CREDIT_NS`.

/// How far a vif may be ahead.
const LEAD_NS: u64 = 5_000;
/// How long those who are ahead wait for one that has just become idle.
const PATIENCE_NS: u64 = 3_000;
/// How much of the time that it did not want a vif has a right to later: it covers the gaps between its bursts.
const CREDIT_NS: u64 = 200_000;

/// What most turns pay for a request: a median that follows, by a small step for each turn. In 1/256 of a nanosecond.
#[derive(Clone, Copy, Debug, Default)]
struct Price {
    /// 0: no turn had a request so far.
    now: u64,
    /// As of the round's begin: it is the same for all who are served in it, whatever comes before them.
    charged: u64,
}

impl Price {
    /// A step is one part in so many.
    const STEP: u64 = 64;

    #[inline]
    fn see(&mut self, turn: Paid) {
        if self.now == 0 {
            self.now = turn.time / turn.requests;
        } else if turn.time > self.now * turn.requests {
            self.now += self.now / Self::STEP + 1;
        } else {
            self.now -= (self.now / Self::STEP).max(1);
        }
    }

    /// What is charged for requests that cost this vif so much of late.
    #[inline]
    fn of(&self, turn: Paid, lately: Paid) -> u64 {
        let (time, due) = (lately.time, self.charged * lately.requests);
        let usual = time * 3 >= due * 2 && time * 2 <= due * 3;
        (if usual { self.charged * turn.requests } else { turn.time }) >> 8
    }
}

/// Time in 1/256 ns, and the requests that took it.
#[derive(Clone, Copy, Debug, Default)]
struct Paid {
    time: u64,
    requests: u64,
}

impl Paid {
    /// Of the last turns, each of which counts a sixteenth less than the next.
    #[inline]
    fn add(&mut self, turn: Self) {
        self.time = self.time - self.time / 16 + turn.time * 16;
        self.requests = self.requests - self.requests / 16 + turn.requests * 16;
    }
}

/// One vif's account.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turn {
    spent_ns: u64,
    /// It had something to do, at most `PATIENCE_NS` ago.
    busy: bool,
    /// How long others have waited for it since.
    idle_ns: u64,
    lately: Paid,
}

/// The worker's account.
#[derive(Clone, Copy, Debug)]
pub struct FairScheduler {
    /// Least time among those that are busy, as of the last round.
    floor_ns: u64,
    /// The same of this round, so far.
    next_floor_ns: u64,
    /// Most time of all.
    top_ns: u64,
    /// When this round began.
    began_ns: u64,
    /// How long the last round took, if nobody had anything to do in it.
    waited_ns: u64,
    /// Somebody was served in this round.
    worked: bool,
    price: Price,
}

impl Default for FairScheduler {
    fn default() -> Self {
        let none = u64::MAX;
        Self {
            floor_ns: none,
            next_floor_ns: none,
            top_ns: 0,
            began_ns: 0,
            waited_ns: 0,
            worked: true,
            price: Price::default(),
        }
    }
}

impl FairScheduler {
    /// A new round begins now.
    #[inline]
    pub fn begin(&mut self, now_ns: u64) {
        self.price.charged = self.price.now;
        self.waited_ns = if self.worked { 0 } else { now_ns.saturating_sub(self.began_ns) };
        self.began_ns = now_ns;
        self.worked = false;
        self.floor_ns = self.next_floor_ns;
        self.next_floor_ns = u64::MAX;
    }

    /// Whether it is to wait in this round.
    #[inline]
    pub fn waits(&mut self, turn: &Turn) -> bool {
        let waits = turn.busy && turn.spent_ns > self.floor_ns.saturating_add(LEAD_NS);
        if waits {
            self.next_floor_ns = self.next_floor_ns.min(turn.spent_ns);
        }
        waits
    }

    /// It was served for so long, and so many of its requests were taken.
    #[inline]
    pub fn served(&mut self, turn: &mut Turn, ns: u64, requests: u32) {
        let charged = if requests == 0 { ns } else { self.charge(turn, ns, requests) };
        turn.spent_ns = turn.spent_ns.max(self.top_ns.saturating_sub(CREDIT_NS)) + charged;
        (turn.busy, turn.idle_ns) = (true, 0);
        self.worked = true;
        self.count(turn);
    }

    fn charge(&mut self, turn: &mut Turn, ns: u64, requests: u32) -> u64 {
        let paid = Paid { time: ns << 8, requests: requests.into() };
        turn.lately.add(paid);
        self.price.see(paid);
        self.price.of(paid, turn.lately)
    }

    /// It had nothing to do.
    #[inline]
    pub fn idle(&mut self, turn: &mut Turn) {
        if !turn.busy {
            return;
        }
        turn.idle_ns += self.waited_ns;
        turn.spent_ns += self.waited_ns;
        turn.busy = turn.idle_ns < PATIENCE_NS;
        if turn.busy {
            self.count(turn);
        }
    }

    fn count(&mut self, turn: &Turn) {
        self.top_ns = self.top_ns.max(turn.spent_ns);
        self.next_floor_ns = self.next_floor_ns.min(turn.spent_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a round costs in which nobody has anything to do.
    const LOOK_NS: u64 = 50;

    /// Each vif: how long a batch takes, and how long after its end there is another one. Returns the time that each got
    /// of `total`.
    fn shares(vifs: &[(u64, u64)], total: u64) -> Vec<u64> {
        let (mut turns, mut now) = (FairScheduler::default(), 0);
        let mut state = vec![(Turn::default(), 0u64, 0u64); vifs.len()];
        while now < total {
            turns.begin(now);
            now += LOOK_NS;
            for (&(batch, gap), (turn, due, got)) in vifs.iter().zip(&mut state) {
                if turns.waits(turn) {
                    continue;
                }
                if *due > now {
                    turns.idle(turn);
                    continue;
                }
                now += batch;
                *got += batch;
                *due = now + gap;
                turns.served(turn, batch, 64);
            }
        }
        state.iter().map(|(_, _, got)| *got).collect()
    }

    fn is_about(got: u64, wanted: u64) {
        assert!(got.abs_diff(wanted) * 10 < wanted, "{got} and not {wanted}");
    }

    #[test]
    fn time_is_shared_whatever_a_batch_takes() {
        for other in [1_000, 30_000, 100_000] {
            let got = shares(&[(1_000, 0), (other, 0)], 100_000_000);
            is_about(got[0], 50_000_000);
            is_about(got[1], 50_000_000);
        }
        let got = shares(&[(1_000, 0), (50_000, 0), (10_000, 0), (500, 1_000_000_000)], 300_000_000);
        got[..3].iter().for_each(|got| is_about(*got, 100_000_000));
    }

    #[test]
    fn who_does_the_same_gets_as_much_wherever_its_pages_lie() {
        let vifs: Vec<_> = (0..32).map(|k| (2_000 + 20 * k, 0)).collect();
        let got = shares(&vifs, 1_000_000_000);
        let batches: Vec<_> = got.iter().zip(&vifs).map(|(got, (batch, _))| got / batch).collect();
        let (least, most) = (batches.iter().min().unwrap(), batches.iter().max().unwrap());
        assert!((most - least) * 200 < *most, "{batches:?}");
    }

    #[test]
    fn half_more_is_the_most_that_a_price_hides() {
        // By what the last one's batches take, beside three of 2000 ns: never more than 3/2 of a share.
        for batch in (2_000..9_000).step_by(100) {
            let got = shares(&[(2_000, 0), (2_000, 0), (2_000, 0), (batch, 0)], 400_000_000);
            let others = (got[0] + got[1] + got[2]) / 3;
            assert!(got[3] * 100 <= others * 153, "{batch}: {got:?}");
            assert!(got[3] * 100 >= others * 97, "{batch}: {got:?}");
        }
    }

    #[test]
    fn a_moment_of_rest_costs_no_long_batch() {
        // A guest as fast as the worker: after each batch there is nothing for half a microsecond.
        let got = shares(&[(1_000, 500), (50_000, 0)], 100_000_000);
        assert!(got[0] > 30_000_000, "{got:?}");
    }

    #[test]
    fn who_wants_less_than_its_share_gets_it_and_the_rest_is_not_wasted() {
        // A burst of 20 us each 100 us, beside one that takes all it gets.
        let got = shares(&[(20_000, 80_000), (30_000, 0)], 100_000_000);
        assert!(got[0] > 14_000_000, "{got:?}");
        assert!(got[0] + got[1] > 93_000_000, "{got:?}");
    }

    #[test]
    fn who_lets_others_wait_pays_for_it() {
        // A frame just before patience ends, again and again: it has half of the time at most, waiting included.
        let got = shares(&[(100, PATIENCE_NS - 200), (30_000, 0)], 100_000_000);
        assert!(got[1] > 45_000_000, "{got:?}");
    }

    #[test]
    fn rest_is_not_saved_up() {
        let mut turns = FairScheduler::default();
        let (mut early, mut late) = (Turn::default(), Turn::default());
        turns.served(&mut early, 1_000_000_000, 64);
        turns.served(&mut late, 1_000, 64);
        turns.begin(0);
        assert!(turns.waits(&early) && !turns.waits(&late));
        assert!(early.spent_ns - late.spent_ns <= CREDIT_NS);
    }
}
