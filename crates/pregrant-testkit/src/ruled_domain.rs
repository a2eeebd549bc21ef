//! A domain for which a test forbids or counts mappings, copies, bindings and unmaskings. All other
//! calls go to the real domain.
//!
//! ```text
//!   driver --map, bind, unmask--> RuledDomain<R> --R: may it?--> LocalDomain
//! ```
#![expect(unsafe_code, reason = "a platform's traits are unsafe; the domain keeps what they ask")]

use pregrant::platform::local::{LocalChan, LocalDomain, LocalMap};
use pregrant::platform::{
    Access, CopyOp, Events, GrantOps, LentCopies, LocalBytes, MapError, PeerMem, Platform, ReadySet,
};
use pregrant::port::Burst;
use pregrant::{DomId, EvtchnPort, GrantRef, PlatformError};
use std::time::Duration;

/// Rules by which a test changes the results of a domain's calls.
pub trait Rules {
    /// Returns the error with which a mapping of these pages fails, if it must fail.
    fn may_map(&self, refs: &[GrantRef]) -> Result<(), MapError> {
        let _ = refs;
        Ok(())
    }
    /// Returns the error with which the binding of an event channel fails, if it must fail.
    fn may_bind(&self) -> Result<(), PlatformError> {
        Ok(())
    }
    /// Pages are about to be copied from or to, or unmapped.
    fn touches(&self) {}
    fn unmasks(&self, is_spurious: bool) {
        let _ = is_spurious;
    }
    /// True if the domain copies from memory that a port lends.
    fn copies_lent(&self) -> bool {
        false
    }
}

pub struct RuledDomain<R> {
    pub domain: LocalDomain,
    pub rules: R,
}

// SAFETY: everything is the domain's.
unsafe impl<R: Rules> PeerMem for RuledDomain<R> {
    type Map = LocalMap;
    fn map(&self, of: DomId, refs: &[GrantRef], acc: Access) -> Result<LocalMap, MapError> {
        self.rules.may_map(refs)?;
        self.domain.map(of, refs, acc)
    }
    fn unmap(&self, done: &mut Vec<LocalMap>) {
        self.rules.touches();
        self.domain.unmap(done);
    }
    fn copy(&self, of: DomId, local: LocalBytes<'_>, ops: &mut [CopyOp]) -> Result<(), PlatformError> {
        self.rules.touches();
        self.domain.copy(of, local, ops)
    }
    fn grant_ops(&self) -> GrantOps {
        self.domain.grant_ops()
    }
    fn lent_copies(&self) -> Option<&dyn LentCopies> {
        self.rules.copies_lent().then_some(self)
    }
}

impl<R: Rules> LentCopies for RuledDomain<R> {
    fn copy_lent(&self, of: DomId, frames: &Burst<'_>, ops: &mut [CopyOp]) -> Result<(), PlatformError> {
        let mut bytes = frames.bytes.to_vec();
        for lent in frames.lent {
            let at = lent.at as usize;
            assert_eq!(lent.piece.copy_out(&mut bytes[at..at + lent.piece.len()]), lent.piece.len());
        }
        assert!(ops.is_sorted_by_key(|op| op.at), "a platform goes once through what is lent");
        self.copy(of, LocalBytes::ToPeer(&bytes), ops)
    }
}

impl<R: Rules> Events for RuledDomain<R> {
    type Chan = LocalChan;
    fn offer(&self, to: DomId) -> Result<(LocalChan, EvtchnPort), PlatformError> {
        self.domain.offer(to)
    }
    fn bind(&self, to: DomId, port: EvtchnPort) -> Result<LocalChan, PlatformError> {
        self.rules.may_bind()?;
        self.domain.bind(to, port)
    }
    fn adopt(&self, chan: LocalChan) -> Result<LocalChan, PlatformError> {
        self.domain.adopt(chan)
    }
    fn local(&self, chan: &LocalChan) -> EvtchnPort {
        self.domain.local(chan)
    }
    fn notify(&self, chan: &LocalChan) {
        self.domain.notify(chan);
    }
    fn unmask(&self, chan: &LocalChan) {
        self.rules.unmasks(false);
        self.domain.unmask(chan);
    }
    fn unmask_spurious(&self, chan: &LocalChan) {
        self.rules.unmasks(true);
        self.domain.unmask_spurious(chan);
    }
    fn wait(&self, ready: &mut ReadySet, max: Option<Duration>) {
        self.domain.wait(ready, max);
    }
}

impl<R: Rules + Send + 'static> Platform for RuledDomain<R> {
    type Grants = LocalDomain;
    type Peer = Self;
    type Events = Self;
    type Clock = LocalDomain;
    fn domid(&self) -> DomId {
        self.domain.domid()
    }
    fn grants(&self) -> &LocalDomain {
        &self.domain
    }
    fn peer(&self) -> &Self {
        self
    }
    fn events(&self) -> &Self {
        self
    }
    fn clock(&self) -> &LocalDomain {
        &self.domain
    }
}
