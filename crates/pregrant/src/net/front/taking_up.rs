//! Decides about a back in state 2 (InitWait) while our queues are live: it may serve them, or wait
//! for a front that starts again in state 1.
//!
//! Linux's netback, unbound and bound again, maps the live rings and serves them at 2; it says 4
//! once its hotplug script has said that it ran, which may be much later or never. Another back may
//! wait for a front at 1, and touch no ring before. Only the rings tell which:
//!
//! | since the back is at 2 | the front begins again |
//! |---|---|
//! | requests wait for an answer | 3 s after the last answer, or after they were seen first |
//! | none waits, and none was answered | after 30 s |
//! | none waits, and some were answered | never: it serves, and the link is idle |
//!
//! The rings are looked at twice a second, by the owner's timer. Of queues that are handed out
//! their halves say whether answers came, and whether they wait for some.
//!
//! What a back may do: answer now and then, and so keep its front at 4 for as long as it likes. It
//! can do that at 4 as well.

/// How long requests may wait for an answer.
const ANSWERS_NS: u64 = 3_000_000_000;
/// How long the front waits if the rings have no requests: the back may never use them.
const BEGINS_NS: u64 = 30_000_000_000;
/// Interval at which the rings are looked at.
const LOOK_NS: u64 = 500_000_000;

/// What a look at the rings showed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Sum of the answers that the back has published on all rings; it wraps around.
    pub answers: u32,
    /// Answers arrived at a half that is handed out.
    pub answered: bool,
    /// True if frames that were sent have no answers yet.
    pub waits: bool,
}

/// Decides whether a back in state 2 (InitWait) serves the live rings, or the front must reconnect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TakingUp {
    /// Time since which the back is in state 2.
    since_ns: u64,
    looked_ns: u64,
    answers: u32,
    /// The back has answered a request while in state 2.
    serves: bool,
    /// Time since which requests wait for an answer, or of the last answer.
    waits_since_ns: Option<u64>,
}

impl TakingUp {
    /// Starts the wait at `now_ns`.
    pub fn new(now_ns: u64, seen: Seen) -> Self {
        let waits_since_ns = seen.waits.then_some(now_ns);
        Self { since_ns: now_ns, looked_ns: now_ns, answers: seen.answers, serves: false, waits_since_ns }
    }

    /// Updates the decision with what the rings show at `now_ns`.
    pub fn look(&mut self, now_ns: u64, seen: Seen) {
        let answered = seen.answered || seen.answers != self.answers;
        self.serves |= answered;
        let since_ns = self.waits_since_ns.filter(|_| !answered).unwrap_or(now_ns);
        self.waits_since_ns = seen.waits.then_some(since_ns);
        (self.looked_ns, self.answers) = (now_ns, seen.answers);
    }

    /// When the front will reconnect if nothing changes; None: it will not.
    pub fn ends_ns(&self) -> Option<u64> {
        let begins = (!self.serves).then_some(self.since_ns.saturating_add(BEGINS_NS));
        let waits = self.waits_since_ns.map(|since| since.saturating_add(ANSWERS_NS));
        begins.into_iter().chain(waits).min()
    }

    /// When the rings must be looked at next.
    pub fn due_ns(&self) -> u64 {
        let look = self.looked_ns.saturating_add(LOOK_NS);
        self.ends_ns().map_or(look, |ends| ends.min(look))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn seen(answers: u32, waits: bool) -> Seen {
        Seen { answers, waits, ..Seen::default() }
    }

    #[test]
    fn requests_wait_for_three_seconds_from_the_last_answer() {
        let mut back = TakingUp::new(10 * S, seen(7, true));
        assert_eq!((back.ends_ns(), back.due_ns()), (Some(13 * S), 10 * S + LOOK_NS));
        back.look(12 * S, seen(7, true));
        assert_eq!(back.ends_ns(), Some(13 * S), "nothing was answered");
        back.look(12 * S + 1, seen(8, true));
        assert_eq!(back.ends_ns(), Some(15 * S + 1));
        // The number wraps, and answers may come to halves.
        back.look(13 * S, seen(0, true));
        assert_eq!(back.ends_ns(), Some(16 * S));
        back.look(14 * S, Seen { answered: true, ..seen(0, true) });
        assert_eq!(back.ends_ns(), Some(17 * S));
        back.look(16 * S + S - 1, seen(0, true));
        assert_eq!((back.ends_ns(), back.due_ns()), (Some(17 * S), 17 * S));
    }

    #[test]
    fn an_idle_link_says_nothing_against_a_back_that_answered() {
        let mut back = TakingUp::new(0, seen(0, false));
        assert_eq!(back.ends_ns(), Some(BEGINS_NS), "it may wait for a front that begins");
        back.look(5 * S, seen(0, true));
        assert_eq!(back.ends_ns(), Some(8 * S), "from when they were sent");
        back.look(6 * S, seen(1, false));
        back.look(1000 * S, seen(1, false));
        assert_eq!((back.ends_ns(), back.due_ns()), (None, 1000 * S + LOOK_NS));
        back.look(1001 * S, seen(1, true));
        assert_eq!(back.ends_ns(), Some(1004 * S));
    }
}
