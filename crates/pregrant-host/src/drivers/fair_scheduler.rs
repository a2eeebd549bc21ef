//! Whose turn it is, when several devices (vifs or disks, below "vif" for short) want one worker:
//! shares of its time, and not of batches.
//!
//! A batch of short staged frames takes a microsecond, one of long frames by grant copy fifty: a
//! turn each would leave the one guest a fiftieth of the worker. So a vif that is ahead of the one
//! that was served least waits until that one has caught up, or has had nothing to do for
//! `PATIENCE_NS`: a guest that fills its ring as fast as it is emptied seems idle for moments, and
//! each of them would cost it a long batch of the other's.
//!
//! The cost of a request also depends on which pages a guest has: guests that do the same differ by
//! a fifth (`pregrant-lab bench fairness`). So a vif whose requests lately cost about what is paid
//! for most (`Price`) is charged as those are, and vifs that do the same get as many frames as each
//! other, also when the worker was away in the middle of a turn. A vif whose requests cost more or
//! less is charged its time.
//!
//! ```text
//!   what a vif's requests cost lately, to the median of all:         ... 2/3 .................. 3/2 ...
//!   charged                                                          time | requests * median | time
//! ```
//!
//! What a guest may do: ask for all of the worker, or for a frame now and then, so that others wait
//! for it. Both count against its own share, waiting included. One whose requests cost up to half
//! more than most takes up to that much more of the time, however it mixes cheap and dear ones.
//! Those who ask for half of all requests move the median, too: others may then be charged up to
//! 3/2 of their time. Time that a vif did not want is not saved up, but for `CREDIT_NS`.

/// Worker time by which a vif may be ahead of the others.
const LEAD_NS: u64 = 5_000;
/// The time that the vifs that are ahead wait for a vif that has just become idle.
const PATIENCE_NS: u64 = 3_000;
/// Worker time that an idle vif may claim later. It covers the gaps between the vif's bursts.
const CREDIT_NS: u64 = 200_000;
/// Worker time beyond 3/2 of the charged price that is not charged to a vif: the worker may have
/// been paused in the middle of its turn.
const FORGIVEN_NS: u64 = 200_000;

/// The usual price of a request: a running median, which moves by a small step for each turn. Turns
/// with fewer than `FULL_TURN` requests move it less, so that many short turns have no more weight
/// than a few long ones. Unit: 1/256 ns.
#[derive(Clone, Copy, Debug, Default)]
struct Price {
    /// The current price; 0: no turn has had a request.
    now: u64,
    /// The price at the start of the round. It holds for all vifs in the round, in whatever order
    /// they are served.
    charged: u64,
}

impl Price {
    /// The divisor of the price's step: a full turn moves the price by 1/64.
    const STEP: u64 = 64;
    /// Requests of a turn that make a whole step.
    const FULL_TURN: u64 = 64;

    #[inline]
    fn see(&mut self, turn: Paid) {
        let step =
            self.now.saturating_mul(turn.requests.min(Self::FULL_TURN)) / (Self::STEP * Self::FULL_TURN);
        if self.now == 0 {
            self.now = turn.time / turn.requests;
        } else if turn.time > self.now.saturating_mul(turn.requests) {
            self.now += step.max(1);
        } else {
            self.now -= step.max(1);
        }
    }

    /// Returns the cost of `requests` requests at this price.
    #[inline]
    fn of(&self, requests: u64) -> u64 {
        self.charged.saturating_mul(requests)
    }

    /// True if the vif's recent requests cost about as much as most do.
    #[inline]
    fn is_usual(&self, lately: Paid) -> bool {
        let (time, due) = (lately.time, self.of(lately.requests));
        time.saturating_mul(3) >= due.saturating_mul(2) && time.saturating_mul(2) <= due.saturating_mul(3)
    }
}

/// Worker time in 1/256 ns, and the number of requests that used it.
#[derive(Clone, Copy, Debug, Default)]
struct Paid {
    time: u64,
    requests: u64,
}

impl Paid {
    /// Adds a turn to a mean of the last turns, in which each counts a sixteenth less than the next
    /// one.
    #[inline]
    fn add(&mut self, turn: Self) {
        self.time = self.time - self.time / 16 + turn.time * 16;
        self.requests = self.requests - self.requests / 16 + turn.requests * 16;
    }
}

/// The scheduler's account of one vif.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turn {
    spent_ns: u64,
    /// True if the vif had work at most `PATIENCE_NS` ago.
    busy: bool,
    /// The time that the vifs that are ahead have waited for this vif since it became idle.
    idle_ns: u64,
    lately: Paid,
    /// Worker time of its turns beyond 3/2 of the charged time, in 1/256 ns.
    over: u64,
}

/// The accounts of all vifs of one worker.
#[derive(Clone, Copy, Debug)]
pub struct FairScheduler {
    /// Least worker time among busy vifs, as of the last round.
    floor_ns: u64,
    /// The value of `floor_ns` for the current round so far.
    next_floor_ns: u64,
    /// Worker time of the vif that has used most.
    top_ns: u64,
    /// Time at which the current round started.
    began_ns: u64,
    /// Duration of the last round if no vif had work in it, else 0.
    waited_ns: u64,
    /// True if a vif was served in this round.
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
    /// Begins a new round.
    #[inline]
    pub fn begin(&mut self, now_ns: u64) {
        self.price.charged = self.price.now;
        self.waited_ns = if self.worked { 0 } else { now_ns.saturating_sub(self.began_ns) };
        self.began_ns = now_ns;
        self.worked = false;
        self.floor_ns = self.next_floor_ns;
        self.next_floor_ns = u64::MAX;
    }

    /// True if the vif must wait in this round.
    #[inline]
    pub fn waits(&mut self, turn: &Turn) -> bool {
        let waits = turn.busy && turn.spent_ns > self.floor_ns.saturating_add(LEAD_NS);
        if waits {
            self.next_floor_ns = self.next_floor_ns.min(turn.spent_ns);
        }
        waits
    }

    /// Charges a vif for a turn of `ns` with `requests` requests.
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
        if !self.price.is_usual(turn.lately) {
            return ns;
        }
        // Turns that cost nothing make no room for dear ones: what is forgiven is counted.
        let due = self.price.of(paid.requests);
        let over = turn.over.saturating_add(paid.time).saturating_sub(due.saturating_mul(3) / 2);
        turn.over = over.min(FORGIVEN_NS << 8);
        due.saturating_add(over - turn.over) >> 8
    }

    /// Notes that a vif had no work in its turn.
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

    /// The time of a round in which no queue has work.
    const CHECK_NS: u64 = 50;

    /// Simulates vifs. For each vif, the two values are the time that a batch takes, and the time
    /// after the batch's end at which the next one is there. Returns the part of `total` that each
    /// vif got.
    fn shares(vifs: &[(u64, u64)], total: u64) -> Vec<u64> {
        let (mut turns, mut now) = (FairScheduler::default(), 0);
        let mut state = vec![(Turn::default(), 0u64, 0u64); vifs.len()];
        while now < total {
            turns.begin(now);
            now += CHECK_NS;
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
    fn who_does_the_same_gets_as_much_wherever_its_pages_are() {
        let vifs: Vec<_> = (0..32).map(|k| (2_000 + 20 * k, 0)).collect();
        let got = shares(&vifs, 1_000_000_000);
        let batches: Vec<_> = got.iter().zip(&vifs).map(|(got, (batch, _))| got / batch).collect();
        let (least, most) = (batches.iter().min().unwrap(), batches.iter().max().unwrap());
        assert!((most - least) * 200 < *most, "{batches:?}");
    }

    #[test]
    fn half_more_is_the_most_that_a_price_hides() {
        // Batches of the last vif get longer, beside three vifs with batches of 2000 ns: it never
        // gets more than 3/2 of a fair share.
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
        // A vif with a burst of 20 us every 100 us, beside one that uses all the time that it gets.
        let got = shares(&[(20_000, 80_000), (30_000, 0)], 100_000_000);
        assert!(got[0] > 14_000_000, "{got:?}");
        assert!(got[0] + got[1] > 93_000_000, "{got:?}");
    }

    #[test]
    fn who_lets_others_wait_pays_for_it() {
        // A vif whose next frame comes just before the others stop waiting, again and again: it
        // gets half of the time at most, including the time that others waited for it.
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

    /// Simulates 400 ms of a worker that serves four guests: three with full rings, each with 64
    /// requests of 31 ns in each turn, and a fourth guest, whose time and requests `choose` decides
    /// from the scheduler's state. Returns the time of the fourth guest in hundredths of a fair
    /// quarter.
    fn chosen(mut choose: impl FnMut(&Turn, &Price) -> (u64, u32)) -> u64 {
        let (mut turns, mut now, mut got) = (FairScheduler::default(), 0, [0; 2]);
        let (mut others, mut it) = ([Turn::default(); 3], Turn::default());
        while now < 400_000_000 {
            turns.begin(now);
            now += CHECK_NS;
            for turn in &mut others {
                if !turns.waits(turn) {
                    now += 2_000;
                    got[0] += 2_000;
                    turns.served(turn, 2_000, 64);
                }
            }
            if !turns.waits(&it) {
                let (took, requests) = choose(&it, &turns.price);
                now += took;
                got[1] += took;
                turns.served(&mut it, took, requests);
            }
        }
        got[1] * 400 / (got[0] + got[1])
    }

    #[test]
    fn cheap_requests_do_not_pay_for_dear_ones() {
        const DEAR: (u64, u32) = (50_000, 64);
        // Many requests that cost nothing (such as are refused), the dearest while it seems usual,
        // single ones until that is forgotten.
        let mut next = 0;
        let share = chosen(|it, price| {
            let mut then = it.lately;
            then.add(Paid { time: DEAR.0 << 8, requests: DEAR.1.into() });
            next = match next {
                0 if it.lately.requests < 1024 => 1,
                1 if it.lately.requests > 20_000 => 2,
                2 if then.time * 2 > price.now * then.requests * 3 => 0,
                stays => stays,
            };
            [(50, 1), (500, 256), DEAR][next]
        });
        assert!(share <= 140, "{share} hundredths of its share");
    }

    #[test]
    fn short_turns_do_not_make_the_price() {
        // Single requests until the price is 3/2 of what others pay, then requests that cost 3/2 of
        // that.
        let share = chosen(|_, price| {
            let low = price.now < (31 << 8) * 147 / 100;
            if low { (50, 1) } else { ((price.now * 64 * 145 / 100) >> 8, 64) }
        });
        assert!(share <= 140, "{share} hundredths of its share");
    }
}
