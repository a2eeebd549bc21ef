//! The base of the suite's cases: the machine, the result of a case, and steps that most cases
//! share.

use pregrant::platform::{Access, CopyOp, Events, GrantPool, Platform, ReadySet};
use pregrant::shm::SharedBytes;
use pregrant::wire::grant::GrantStatus;
use pregrant::{DomId, EvtchnPort, GrantRef, PAGE_SIZE};
use std::fmt;
use std::time::Duration;

/// A machine to run the suite on.
pub trait Machine {
    /// The platform of the granting side.
    type Front: Platform;
    /// The platform of the side that uses the grants.
    type Back: Platform;
    /// Creates two domains, each of which can reach the other (or one domain that grants to
    /// itself).
    fn pair(&self) -> (Self::Front, Self::Back);
    /// Creates a successor of the last pair's back in the same domain, after that back was dropped.
    /// None: the machine cannot do this.
    fn successor(&self) -> Option<Self::Back>;
    /// Returns the reason why grants cannot be mapped on this machine; None: they can.
    fn cannot_map(&self) -> Option<&'static str> {
        None
    }
}

/// The result of a case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CaseStatus {
    /// The case passed.
    Ok,
    /// The platform does not offer the feature; the text is the reason.
    Skip(&'static str),
    /// The case failed; the text describes what was observed.
    Fail(String),
}

/// A case with its result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    pub name: &'static str,
    pub status: CaseStatus,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.status {
            CaseStatus::Ok => write!(f, "ok    {}", self.name),
            CaseStatus::Skip(why) => write!(f, "skip  {}: {why}", self.name),
            CaseStatus::Fail(what) => write!(f, "FAIL  {}: {what}", self.name),
        }
    }
}

pub(super) type Case = Result<(), CaseStatus>;

pub(super) fn fail(what: impl fmt::Display) -> CaseStatus {
    CaseStatus::Fail(what.to_string())
}

macro_rules! ensure {
    ($cond:expr, $($what:tt)+) => {
        if !$cond {
            return Err($crate::conformance::stage::CaseStatus::Fail(format!($($what)+)));
        }
    };
}
pub(super) use ensure;

/// Grants `n` pages to the back; page `i` holds `pattern(i)`.
pub(super) fn region<F: Platform>(
    front: &F,
    to: DomId,
    acc: Access,
    n: usize,
) -> Result<(<F::Grants as GrantPool>::Region, Vec<GrantRef>), CaseStatus> {
    let mut refs = vec![GrantRef::NONE; n];
    let region = front.grants().alloc(to, acc, &mut refs).map_err(fail)?;
    for page in 0..n {
        ensure!(region.copy_in(page * PAGE_SIZE, &pattern(page)), "the region has fewer than {n} pages");
    }
    Ok((region, refs))
}

pub(super) fn pattern(seed: usize) -> Vec<u8> {
    (0..PAGE_SIZE).map(|at| (at.wrapping_mul(31) ^ seed.wrapping_mul(97) ^ at >> 8) as u8).collect()
}

pub(super) fn release<F: Platform>(front: &F, region: <F::Grants as GrantPool>::Region) -> Case {
    front
        .grants()
        .release(region)
        .map_err(|_| fail("the region cannot be released, as if it were still in use"))
}

pub(super) fn read(from: &impl SharedBytes, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    assert!(from.copy_out(at, &mut bytes), "{at}+{len} is outside of {} bytes", from.len());
    bytes
}

/// If no event has come for this long, none is in flight.
pub(super) const SETTLED: Duration = Duration::from_millis(50);

/// Returns the channels that fired. At least one must fire, within the time that an emulated
/// machine may need.
pub(super) fn fired<P: Platform>(p: &P) -> Vec<EvtchnPort> {
    fired_within(p, Duration::from_secs(10))
}

/// Returns the channels that fired within `patience`.
pub(super) fn fired_within<P: Platform>(p: &P, patience: Duration) -> Vec<EvtchnPort> {
    let mut ready = ReadySet::default();
    p.events().wait(&mut ready, Some(patience));
    ready.ports
}

/// Returns the channels that are pending now.
pub(super) fn pending<P: Platform>(p: &P) -> Vec<EvtchnPort> {
    fired_within(p, Duration::ZERO)
}

pub(super) type Chan<P> = <<P as Platform>::Events as Events>::Chan;

/// Binds a pair of ends and consumes the event that binding causes.
pub(super) fn bound<F: Platform, B: Platform>(
    front: &F,
    back: &B,
) -> Result<(Chan<F>, Chan<B>, EvtchnPort), CaseStatus> {
    let (near, port) = front.events().offer(back.domid()).map_err(fail)?;
    let remote = back.events().bind(front.domid(), port).map_err(fail)?;
    fired(back);
    back.events().unmask(&remote);
    Ok((near, remote, port))
}

/// Builds a grant copy operation.
pub(super) fn op(gref: GrantRef, offset: usize, len: usize, at: usize) -> CopyOp {
    // A status that no platform returns, so that one that sets no status is noticed.
    CopyOp { gref, offset: offset as u16, len: len as u16, at: at as u32, status: GrantStatus(i16::MIN) }
}
