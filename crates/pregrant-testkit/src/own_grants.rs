//! A domain whose grants are under the test's control: they can fail, are counted or watched.
//! Everything else is the real domain's.
//!
//! ```text
//!   driver --grants()--> OwnGrants<PerFrame<R>> --R: may it?--> LocalDomain
//!          --peer(), events(), clock()------------------------>
//! ```
#![expect(unsafe_code, reason = "a platform's traits are unsafe; the domain keeps what they ask")]

use pregrant::platform::local::{LocalDomain, LocalRegion};
use pregrant::platform::{Access, GrantPool, GrantTable, InUse, Platform};
use pregrant::{DomId, GrantRef, PlatformError};
use std::ops::Deref;

pub struct OwnGrants<G> {
    domain: LocalDomain,
    grants: G,
}

impl<G> OwnGrants<G> {
    /// Creates the domain. `make` gets the real domain, with the machine's grants, and returns the
    /// grants to use in their place.
    pub fn new(domain: LocalDomain, make: impl FnOnce(LocalDomain) -> G) -> Self {
        Self { grants: make(domain.clone()), domain }
    }
}

impl<G> Deref for OwnGrants<G> {
    type Target = G;
    fn deref(&self) -> &G {
        &self.grants
    }
}

impl<G: GrantPool + Send + 'static> Platform for OwnGrants<G> {
    type Grants = G;
    type Peer = LocalDomain;
    type Events = LocalDomain;
    type Clock = LocalDomain;
    fn domid(&self) -> DomId {
        self.domain.domid()
    }
    fn grants(&self) -> &G {
        &self.grants
    }
    fn peer(&self) -> &LocalDomain {
        &self.domain
    }
    fn events(&self) -> &LocalDomain {
        &self.domain
    }
    fn clock(&self) -> &LocalDomain {
        &self.domain
    }
}

/// Rules by which a test changes a domain's allocations and its grants of single frames.
pub trait FrameRules {
    fn allocates(&self) {}
    /// Returns the error with which the next grant of a frame fails, if it must fail.
    fn may_grant(&self) -> Result<(), PlatformError>;
}

/// The grants of a domain, including those of single frames, according to a test's rules.
pub struct PerFrame<R> {
    domain: LocalDomain,
    rules: R,
}

impl<R> PerFrame<R> {
    pub fn on(domain: LocalDomain, rules: R) -> OwnGrants<Self> {
        OwnGrants::new(domain, |domain| Self { domain, rules })
    }
}

impl<R> Deref for PerFrame<R> {
    type Target = R;
    fn deref(&self) -> &R {
        &self.rules
    }
}

// SAFETY: everything is the domain's.
unsafe impl<R: FrameRules> GrantPool for PerFrame<R> {
    type Region = LocalRegion;
    fn alloc(&self, to: DomId, acc: Access, refs: &mut [GrantRef]) -> Result<LocalRegion, PlatformError> {
        self.rules.allocates();
        self.domain.alloc(to, acc, refs)
    }
    fn release(&self, region: LocalRegion) -> Result<(), InUse<LocalRegion>> {
        self.domain.release(region)
    }
    fn per_frame(&self) -> Option<&dyn GrantTable<Region = LocalRegion>> {
        Some(self)
    }
}

impl<R: FrameRules> GrantTable for PerFrame<R> {
    type Region = LocalRegion;
    fn pages(&self, pages: usize) -> Result<LocalRegion, PlatformError> {
        self.domain.pages(pages)
    }
    fn grant(
        &self,
        to: DomId,
        region: &LocalRegion,
        page: usize,
        acc: Access,
    ) -> Result<GrantRef, PlatformError> {
        self.rules.may_grant()?;
        self.domain.grant(to, region, page, acc)
    }
    fn revoke(&self, gref: GrantRef) -> Result<(), InUse<GrantRef>> {
        self.domain.revoke(gref)
    }
}
