//! The base of the suite's cases: the machine, the end of a case, and steps that most of them
//! share.

use pregrant::platform::{Access, CopyOp, Events, GrantPool, Platform, ReadySet};
use pregrant::shm::SharedBytes;
use pregrant::wire::grant::GrantStatus;
use pregrant::{DomId, EvtchnPort, GrantRef, PAGE_SIZE};
use std::fmt;
use std::time::Duration;

/// The machine that the suite runs on.
pub trait Machine {
    /// The granting side.
    type Front: Platform;
    /// The side that uses grants.
    type Back: Platform;
    /// Two domains that can reach each other (or one, granting to itself).
    fn pair(&self) -> (Self::Front, Self::Back);
    /// A successor of the back of the last pair, in the same domain, after the first is dropped.
    /// None: not possible.
    fn successor(&self) -> Option<Self::Back>;
    /// Why grants cannot be mapped here, where they cannot.
    fn cannot_map(&self) -> Option<&'static str> {
        None
    }
}

/// How a case ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CaseStatus {
    /// As it must.
    Ok,
    /// The platform does not offer it; why.
    Skip(&'static str),
    /// Not as it must; what was seen.
    Fail(String),
}

/// One case's end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The case.
    pub name: &'static str,
    /// Its end.
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

/// `n` pages granted to the back; page `i` holds `pattern(i)`.
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

/// After this long without an event none is on its way.
pub(super) const SETTLED: Duration = Duration::from_millis(50);

/// The channels that fired: some must, within the time that an emulated machine may take.
pub(super) fn fired<P: Platform>(p: &P) -> Vec<EvtchnPort> {
    fired_within(p, Duration::from_secs(10))
}

/// The channels that fired within `patience`.
pub(super) fn fired_within<P: Platform>(p: &P, patience: Duration) -> Vec<EvtchnPort> {
    let mut ready = ReadySet::default();
    p.events().wait(&mut ready, Some(patience));
    ready.ports
}

/// The channels that are pending now.
pub(super) fn pending<P: Platform>(p: &P) -> Vec<EvtchnPort> {
    fired_within(p, Duration::ZERO)
}

pub(super) type Chan<P> = <<P as Platform>::Events as Events>::Chan;

/// A bound pair of ends, with the event of the binding taken.
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

/// A piece of a grant copy.
pub(super) fn op(gref: GrantRef, offset: usize, len: usize, at: usize) -> CopyOp {
    // Not a status that a platform answers, so that one that forgets to answer is seen.
    CopyOp { gref, offset: offset as u16, len: len as u16, at: at as u32, status: GrantStatus(i16::MIN) }
}
