//! A domain whose grants this process uses: its memfd, its ledger, its grant table, and who to ask for its bytes.

use super::Core;
use super::ledger::{Layout, Ledger, SLOTS};
use super::pins::Granter;
use super::protocol::{Op, Request};
use super::window::Window;
use crate::line_budget::LineBudget;
use crate::mapping::Mapping;
use pregrant::wire::grant::V1_PER_PAGE;
use pregrant::{DomId, PAGE_SIZE};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

/// One of them. It stays usable after its domain's death: what is mapped stays mapped.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) domid: DomId,
    pub(super) memory: OwnedFd,
    pub(super) ledger: Ledger,
    pub(super) table: Mapping,
    /// Made at the first map: a process that only copies needs none.
    window: OnceCell<Window>,
    /// Mappings of each grant by this process, read-only and writable.
    pub(super) mapped: RefCell<Vec<[u16; 2]>>,
    /// Descriptors that wake its slots.
    upcalls: RefCell<[Option<OwnedFd>; SLOTS]>,
    seen: Cell<u32>,
    /// A process that has its memory mapped, and where; 0 when none has.
    pub(super) pid: Cell<i32>,
    pub(super) address: Cell<u64>,
}

impl Peer {
    pub(super) fn granter(&self) -> Granter<'_> {
        Granter { ledger: &self.ledger, table: &self.table }
    }

    pub(super) fn window(&self, core: &Core) -> Result<&Window, Errno> {
        if let Some(window) = self.window.get() {
            return Ok(window);
        }
        let window = Window::open(self.memory.as_fd(), self.ledger.layout().pages, &core.paging)?;
        Ok(self.window.get_or_init(|| window))
    }

    /// Wakes one of its slots.
    pub(super) fn wake(&self, core: &Core, slot: usize) {
        let mut upcalls = self.upcalls.borrow_mut();
        let Some(entry) = upcalls.get_mut(slot) else { return };
        if entry.is_none() {
            let request = Request::new(Op::Upcall, slot as u32, u32::from(self.domid.0), 0);
            match core.call(&request) {
                Ok(mut reply) => *entry = reply.fds.pop(),
                Err(e) => {
                    static LINES: LineBudget = LineBudget::new();
                    LINES.warn(format_args!("loopback: {} cannot be woken: {e}", self.domid));
                }
            }
        }
        if let Some(fd) = entry {
            // EAGAIN: the counter is full of wake-ups that nobody read; it is awake.
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }
}

impl Core {
    /// Finds a peer, asking the broker the first time, and again when its processes changed.
    #[inline]
    pub(super) fn peer(&self, of: DomId) -> Result<Rc<Peer>, Errno> {
        let peers = self.peers.borrow();
        let last = peers.get(self.last_peer.get()).filter(|p| p.domid == of);
        let known = last.or_else(|| {
            let at = peers.iter().position(|p| p.domid == of)?;
            self.last_peer.set(at);
            peers.get(at)
        });
        if let Some(peer) = known
            && !peer.ledger.is_dead()
            && peer.ledger.incarnation() == peer.seen.get()
        {
            return Ok(Rc::clone(peer));
        }
        drop(peers);
        self.find_peer(of)
    }

    /// Lets go of domains that died: their memory is freed with the last mapping of it. For moments without work.
    pub(super) fn forget_dead(&self) {
        let any = self.peers.borrow().iter().any(|p| p.ledger.is_dead());
        if any {
            self.peers.borrow_mut().retain(|p| !p.ledger.is_dead());
        }
    }

    #[cold]
    fn find_peer(&self, of: DomId) -> Result<Rc<Peer>, Errno> {
        self.forget_dead();
        let mut peers = self.peers.borrow_mut();
        if let Some(at) = peers.iter().position(|p| p.domid == of) {
            self.last_peer.set(at);
            let peer = Rc::clone(&peers[at]);
            let now = peer.ledger.incarnation();
            if now != peer.seen.get() {
                let reply = self.call(&Request::new(Op::Peer, 0, u32::from(of.0), 0))?;
                if peer.ledger.is_dead() {
                    // Died this moment; the reply may be its namesake's.
                    return Err(Errno::NOENT);
                }
                peer.pid.set(reply.words[2] as i32);
                peer.address.set(reply.words[3]);
                peer.seen.set(now);
            }
            return Ok(peer);
        }
        let reply = self.call(&Request::new(Op::Peer, 0, u32::from(of.0), 0))?;
        let [memory, ledger]: [OwnedFd; 2] = reply.fds.try_into().map_err(|_| Errno::PROTO)?;
        let layout = Layout { pages: reply.words[0] as usize, grants: reply.words[1] as usize };
        let ledger = Ledger::open(ledger, layout)?;
        let table = Mapping::new(&memory, layout.grants / V1_PER_PAGE * PAGE_SIZE)?;
        let peer = Rc::new(Peer {
            domid: of,
            memory,
            // A change after the reply shows as another incarnation: 0 is none, so it is asked once more.
            seen: Cell::new(0),
            ledger,
            table,
            window: OnceCell::new(),
            mapped: RefCell::new(vec![[0; 2]; layout.grants]),
            upcalls: RefCell::new([const { None }; SLOTS]),
            pid: Cell::new(reply.words[2] as i32),
            address: Cell::new(reply.words[3]),
        });
        self.last_peer.set(peers.len());
        peers.push(Rc::clone(&peer));
        Ok(peer)
    }
}
