//! Pages of a guest that grants and revokes them as it likes.

use pregrant::platform::local::LocalRegion;
use pregrant::platform::{Access, GrantPool, GrantTable, PeerMem};
use pregrant::shm::SharedBytes;
use pregrant::{DomId, GrantRef, PAGE_SIZE};
use pregrant_testkit::two_domains::{GUEST, HOST, TwoDomains, byte};
use std::sync::LazyLock;

/// A domain that is neither end.
const STRANGER: DomId = DomId(9);

/// The access that a page's grant allows the back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Right {
    None,
    Read,
    Write,
    /// The page is granted to another domain.
    Stranger,
}

/// Pages, each with at most one grant. Page numbers are taken modulo their count.
pub struct GuestPages {
    pub region: LocalRegion,
    refs: Vec<(GrantRef, Right)>,
    /// The back keeps pages mapped that it has seen, so their grants must remain.
    pub kept: bool,
}

impl GuestPages {
    /// `n` pages, all granted to the back with `right`, filled with [`byte`].
    pub fn new(domains: &TwoDomains, n: usize, right: Right) -> Self {
        let region = GrantTable::pages(&domains.guest, n).expect("the guest's pages");
        let mut pages = Self { region, refs: vec![(GrantRef::NONE, Right::None); n], kept: false };
        for page in 0..n {
            pages.grant(domains, page, right);
        }
        fill(&pages.region);
        pages
    }

    /// Ends the grant of a page and makes another one, which may get the old one's number.
    pub fn grant(&mut self, domains: &TwoDomains, page: usize, right: Right) {
        let page = page % self.refs.len();
        if self.refs[page].1 != Right::None {
            let old = domains.guest.revoke(self.refs[page].0);
            if old.is_err() && self.kept {
                return;
            }
            assert!(old.is_ok(), "between two calls the back has no page of an ordinary grant mapped");
        }
        let to = if right == Right::Stranger { STRANGER } else { HOST };
        let acc = if right == Right::Read { Access::ReadOnly } else { Access::ReadWrite };
        let gref = match right {
            Right::None => self.refs[page].0,
            _ => domains.guest.grant(to, &self.region, page, acc).expect("a grant"),
        };
        self.refs[page] = (gref, right);
    }

    /// The grant of a page; for a revoked page its former grant.
    pub fn gref(&self, page: usize) -> u32 {
        self.refs[page % self.refs.len()].0.0
    }

    /// Each page's grant, and what it allows.
    pub fn rights(&self) -> Vec<(u32, Right)> {
        self.refs.iter().map(|&(gref, right)| (gref.0, right)).collect()
    }

    /// The page that the back may write to through this grant.
    pub fn page_of(&self, gref: u32) -> Option<usize> {
        self.refs.iter().position(|&(r, right)| r.0 == gref && right == Right::Write)
    }

    pub fn close(mut self, domains: &TwoDomains) {
        self.kept = false;
        for page in 0..self.refs.len() {
            self.grant(domains, page, Right::None);
        }
        assert!(domains.guest.release(self.region).is_ok());
    }
}

/// What the back reads through a grant of the guest's, if it is its to read.
pub fn granted(domains: &TwoDomains, gref: u32, offset: u16, len: usize) -> Option<Vec<u8>> {
    let map = domains.host.map(GUEST, &[GrantRef(gref)], Access::ReadOnly).ok()?;
    Some(bytes_of(&map, offset.into(), len))
}

/// Fills memory, at most 64 pages, so that neighbouring lines and pages always differ.
pub fn fill(memory: &impl SharedBytes) {
    // Made once: this is what most of an input's time would go to.
    static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| (0..64 * PAGE_SIZE).map(byte).collect());
    assert!(memory.copy_in(0, &PATTERN[..memory.len()]));
}

/// `len` bytes of shared memory.
pub fn bytes_of(memory: &impl SharedBytes, at: usize, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    assert!(memory.copy_out(at, &mut out), "inside of the memory");
    out
}
