//! A domain whose grants are a test's own: they fail, are counted or watched. All else is the domain's.

use pregrant::DomId;
use pregrant::platform::local::LocalDomain;
use pregrant::platform::{GrantPool, Platform};
use std::ops::Deref;

pub struct OwnGrants<G> {
    domain: LocalDomain,
    grants: G,
}

impl<G> OwnGrants<G> {
    /// What makes the grants gets the domain, which has those of the machine.
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
