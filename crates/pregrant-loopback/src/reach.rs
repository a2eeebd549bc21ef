//! A handle's access to other domains: their memory (`map`, `copy`), and the remote ends of its
//! event channels (`events`).
//!
//! ```text
//!   Reach { peers: [Peer 5, Peer 7], room for copies }    one thread's: no locks
//!       PeerMap, Channel --> Peer, Core                    any thread's: atomics, and a lock for what is mapped
//! ```
//! What a peer may do: die, and return with the same domain number. Each use compares its
//! incarnation with the one seen before.

use crate::attachment::Core;
use crate::copy::Copier;
use crate::ledger::Layout;
use crate::peer::Peer;
use crate::protocol::{Op, Request};
use pregrant::DomId;
use pregrant_host::backing::Backing;
use pregrant_host::wake::Extras;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::cell::{Cell, Ref, RefCell};
use std::sync::Arc;

/// Number of domains that one sleep checks for death.
const PEERS_A_CHECK: usize = 8;

/// Access to other domains' memory and to event channels.
#[derive(Debug)]
pub struct Reach {
    pub(super) core: Arc<Core>,
    /// Descriptors that end a sleep.
    pub(super) extras: Extras,
    /// Peers, sorted by domain number.
    peers: RefCell<Vec<(DomId, Arc<Peer>)>>,
    /// Index of the domain that the next sleep checks first.
    checked: Cell<usize>,
    last_peer: Cell<usize>,
    pub(super) copier: Copier,
}

impl Reach {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self {
            core,
            extras: Extras::default(),
            peers: RefCell::new(Vec::new()),
            checked: Cell::new(0),
            last_peer: Cell::new(0),
            copier: Copier::default(),
        }
    }

    /// Finds a peer. Asks the broker the first time, and again when the peer's processes have
    /// changed.
    #[inline]
    pub(super) fn peer(&self, of: DomId) -> Result<Ref<'_, Arc<Peer>>, Errno> {
        let peers = self.peers.borrow();
        let last = self.last_peer.get();
        let at = match peers.get(last) {
            Some((domid, _)) if *domid == of => Some(last),
            _ => peers.binary_search_by_key(&of.0, |(domid, _)| domid.0).ok(),
        };
        if let Some(at) = at
            && peers[at].1.is_as_seen()
        {
            self.last_peer.set(at);
            return Ok(Ref::map(peers, |peers| &peers[at].1));
        }
        drop(peers);
        let at = self.find_peer(of)?;
        self.last_peer.set(at);
        Ok(Ref::map(self.peers.borrow(), |peers| &peers[at].1))
    }

    /// Drops peers whose domain has died; their memory is freed with its last mapping. Called when
    /// idle. It checks a few domains each time, so that its cost does not grow with their number.
    pub(super) fn forget_some_dead(&self) {
        let dead = {
            let peers = self.peers.borrow();
            let (n, first) = (peers.len(), self.checked.get());
            let checks = n.min(PEERS_A_CHECK);
            self.checked.set(if n == 0 { 0 } else { (first + checks) % n });
            (0..checks).any(|k| peers[(first + k) % n].1.ledger.is_dead())
        };
        if dead {
            self.forget_dead();
        }
    }

    fn forget_dead(&self) {
        self.peers.borrow_mut().retain(|(_, p)| !p.ledger.is_dead());
    }

    #[cold]
    fn find_peer(&self, of: DomId) -> Result<usize, Errno> {
        self.forget_dead();
        let mut peers = self.peers.borrow_mut();
        let asked = Request::new(Op::Peer, 0, u32::from(of.0), 0);
        let place = peers.binary_search_by_key(&of.0, |(domid, _)| domid.0);
        if let Ok(at) = place {
            let peer = &peers[at].1;
            let now = peer.ledger.incarnation();
            if !peer.is_as_seen() {
                let reply = self.core.call(&asked)?;
                if peer.ledger.is_dead() {
                    // The domain died just now; the reply may be about another domain of its
                    // number.
                    return Err(Errno::NOENT);
                }
                peer.saw(now, reply.words[0] as i32, reply.words[1]);
            }
            return Ok(at);
        }
        let reply = self.core.call(&asked)?;
        let [pid, address, pages, grants, version, ..] = reply.words;
        let layout = Layout::from_words([pages, grants, version]).ok_or(Errno::PROTO)?;
        let [memory, ledger]: [OwnedFd; 2] = reply.fds.try_into().map_err(|_| Errno::PROTO)?;
        let (memory, ledger) = (Backing::received(memory)?, Backing::received(ledger)?);
        let peer = Peer::open(Arc::clone(&self.core), of, memory, &ledger, layout)?;
        // If the processes changed after the reply, the incarnation differs from it; 0 matches
        // none, so the broker is asked once more.
        peer.saw(0, pid as i32, address);
        let at = place.unwrap_or_else(|at| at);
        peers.insert(at, (of, Arc::new(peer)));
        Ok(at)
    }
}
