//! The broker's state: domains, the processes attached to them, and how all of that is undone when
//! a process dies.
//!
//! Invariants: a connection is attached to at most one domain; a slot is reused only when no grant
//! names its last owner; what a peer must learn at once (death, incarnation, routes) is in the
//! ledger, all else is here.
//!
//! What a process may do: request anything in any order, and die at any moment. Every request is
//! checked; a refusal is an errno.

use super::channels::{Channel, Channels, State};
use super::hooks::Hooks;
use crate::audit::Audit;
use crate::domain_spec::DomainSpec;
use crate::grant_summary::GrantSummary;
use crate::grant_table_version::GrantTableVersion;
use crate::ledger::{Layout, Ledger, PORTS, Route, SLOTS, ZOMBIE};
use crate::pins::{self, Granter, User};
use crate::protocol::{DURABLE, Op, Reply, Request, VERSION};
use crate::table::Busy;
use pregrant::{DomId, PAGE_SIZE};
use pregrant_host::backing::Backing;
use pregrant_host::mapping::Mapping;
use rustix::event::EventfdFlags;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;

/// The number of a connection, which is never reused.
pub(super) type ConnId = u64;

const PAGES_MAX: u64 = 1 << 20;
const TABLE_FRAMES_MAX: u32 = 64;
/// Limits of a domain: the number of persistent regions, and the bytes of one.
const REGIONS_MAX: usize = 1024;
const REGION_BYTES_MAX: u64 = 1 << 24;

struct Domain {
    durable: bool,
    memory: Backing,
    ledger_fd: Backing,
    ledger: Ledger,
    table: Mapping,
    slots: [Option<Attachment>; SLOTS],
    upcalls: [Option<OwnedFd>; SLOTS],
    channels: Channels,
    regions: HashMap<String, (Backing, u64)>,
    /// For each name, the slot that owns it.
    owners: HashMap<String, usize>,
}

#[derive(Clone, Copy)]
struct Attachment {
    pid: u32,
    /// Address at which the process has mapped the domain's memory; 0 until the process sends
    /// [`Op::Mapped`].
    address: u64,
    /// The process is gone, but a grant still names this attachment.
    leaving: bool,
}

impl Domain {
    fn granter(&self) -> Granter<'_> {
        Granter { ledger: &self.ledger, table: &self.table }
    }

    fn upcall(&mut self, slot: usize) -> Result<&OwnedFd, Errno> {
        if self.upcalls[slot].is_none() {
            let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            self.upcalls[slot] = Some(fd);
        }
        self.upcalls[slot].as_ref().ok_or(Errno::INVAL)
    }

    /// Frees grants and pages of dead processes that no peer uses any more.
    fn reclaim(&self) {
        let layout = self.ledger.layout();
        let table = self.granter().table();
        let is_zombie = |gref: &u32| self.ledger.grant_owner(*gref).load(Ordering::Acquire) == ZOMBIE;
        let mut zombies: Vec<u32> = (0..layout.grants as u32).filter(is_zombie).collect();
        table.end_all(&mut zombies, Busy::EndLate, |gref| {
            self.ledger.grant_owner(gref).store(0, Ordering::Release);
        });
        let mut kept = vec![false; layout.pages];
        for gref in zombies {
            for frame in [table.frame(gref), self.ledger.frame(gref)] {
                if let Some(keep) = kept.get_mut(frame.load(Ordering::Relaxed) as usize) {
                    *keep = true;
                }
            }
        }
        for (page, keep) in kept.into_iter().enumerate() {
            let owner = self.ledger.page_owner(page);
            if !keep && owner.load(Ordering::Acquire) == ZOMBIE {
                owner.store(0, Ordering::Release);
            }
        }
    }

    /// Marks all that a dead slot owned as owned by [`ZOMBIE`].
    fn disown(&self, slot: usize) {
        let layout = self.ledger.layout();
        let grants = (0..layout.grants as u32).map(|gref| self.ledger.grant_owner(gref));
        let pages = (0..layout.pages).map(|page| self.ledger.page_owner(page));
        for owner in grants.chain(pages) {
            if usize::from(owner.load(Ordering::Acquire)) == slot + 1 {
                owner.store(ZOMBIE, Ordering::Release);
            }
        }
    }
}

/// The whole state of the broker.
pub(super) struct Machine {
    domains: BTreeMap<u16, Domain>,
    attached: HashMap<ConnId, User>,
    /// Dead processes and threads whose use of grants could not be undone yet.
    unswept: Vec<User>,
    /// Connections that were requested and are not served yet.
    fresh: Vec<OwnedFd>,
    hooks: Hooks,
    /// The version of grant table that new domains get.
    version: GrantTableVersion,
}

impl Machine {
    pub(super) fn new(hooks: Hooks) -> Self {
        Self {
            version: GrantTableVersion::default(),
            domains: BTreeMap::new(),
            attached: HashMap::new(),
            unswept: Vec::new(),
            fresh: Vec::new(),
            hooks,
        }
    }

    pub(super) fn use_grant_tables(&mut self, version: GrantTableVersion) {
        self.version = version;
    }

    pub(super) fn create(&mut self, spec: DomainSpec) -> Result<(), Errno> {
        let DomainSpec { domid, pages, grant_frames, durable } = spec;
        if domid.0 >= 0x7FF0
            || !(1..=TABLE_FRAMES_MAX).contains(&grant_frames)
            || pages as u64 > PAGES_MAX
            || pages <= grant_frames as usize
        {
            return Err(Errno::INVAL);
        }
        if self.domains.contains_key(&domid.0) {
            return Err(Errno::EXIST);
        }
        let version = self.version;
        let layout = Layout { pages, grants: grant_frames as usize * version.entries_per_page(), version };
        let memory = Backing::sealed(&format!("pregrant-domain-{}", domid.0), pages * PAGE_SIZE)?;
        let ledger_fd = Backing::sealed(&format!("pregrant-ledger-{}", domid.0), layout.len())?;
        let ledger = Ledger::open(&ledger_fd, layout)?;
        ledger.initialise(grant_frames as usize);
        let table = Mapping::new(&memory, grant_frames as usize * PAGE_SIZE)?;
        let domain = Domain {
            durable,
            memory,
            ledger_fd,
            ledger,
            table,
            slots: [None; SLOTS],
            upcalls: [const { None }; SLOTS],
            channels: Channels::default(),
            regions: HashMap::new(),
            owners: HashMap::new(),
        };
        self.domains.insert(domid.0, domain);
        (self.hooks.created)(domid);
        Ok(())
    }

    /// Destroys a domain. The peers' ends of its channels become unbound. Pages of its memory that
    /// peers have mapped stay until they unmap them.
    pub(super) fn destroy(&mut self, domid: DomId) -> Result<(), Errno> {
        for slot in 0..SLOTS {
            self.close_slot(User { domid, slot });
        }
        let domain = self.domains.remove(&domid.0).ok_or(Errno::NOENT)?;
        domain.ledger.set_dead();
        for (slot, attachment) in domain.slots.iter().enumerate() {
            if attachment.is_some() {
                self.unswept.push(User { domid, slot });
            }
        }
        self.attached.retain(|_, user| user.domid != domid);
        self.sweep();
        (self.hooks.destroyed)(domid);
        Ok(())
    }

    /// Undoes what a connection had, after its process has died or closed it.
    pub(super) fn disconnect(&mut self, conn: ConnId) {
        let Some(user) = self.attached.remove(&conn) else { return };
        self.close_slot(user);
        let Some(domain) = self.domains.get_mut(&user.domid.0) else { return };
        if let Some(attachment) = &mut domain.slots[user.slot] {
            attachment.leaving = true;
        }
        domain.ledger.bump_incarnation();
        domain.disown(user.slot);
        domain.owners.retain(|_, slot| *slot != user.slot);
        let last = !domain.slots.iter().flatten().any(|a| !a.leaving);
        if last && !domain.durable {
            // `destroy` also sweeps the slot's pins in other domains.
            let _ = self.destroy(user.domid);
            return;
        }
        self.unswept.push(user);
        self.sweep();
    }

    /// Undoes the uses of grants of dead users. Returns true when none is left.
    fn sweep(&mut self) -> bool {
        let mut left = Vec::new();
        for user in std::mem::take(&mut self.unswept) {
            // Every domain gets its turn, also when an earlier one is not clean yet.
            let mut clean = true;
            for domain in self.domains.values() {
                clean &= pins::sweep(domain.granter(), user);
            }
            if !clean {
                left.push(user);
                continue;
            }
            let slot = self.domains.get_mut(&user.domid.0).map(|d| &mut d.slots[user.slot]);
            if let Some(slot) = slot.filter(|slot| slot.is_some_and(|a| a.leaving)) {
                *slot = None;
            }
        }
        self.unswept = left;
        // The dead user may have been the last that used grants whose owner died earlier.
        self.domains.values().for_each(Domain::reclaim);
        self.unswept.is_empty()
    }

    /// Undoes the uses of grants of dead users, if there are any. Returns true when none is left.
    pub(super) fn sweep_if_due(&mut self) -> bool {
        self.unswept.is_empty() || self.sweep()
    }

    fn close_slot(&mut self, user: User) {
        let ports = self.domains.get(&user.domid.0).map(|d| d.channels.of_slot(user.slot));
        for port in ports.unwrap_or_default() {
            self.close(user.domid, port);
        }
    }

    /// Closes a port as Xen's evtchn_close does: the peer's end becomes unbound and waits for this
    /// domain.
    fn close(&mut self, domid: DomId, port: u32) {
        let Some(domain) = self.domains.get_mut(&domid.0) else { return };
        domain.ledger.route(port).store(0, Ordering::Release);
        let Some(Channel { state: State::Bound(peer, remote), .. }) = domain.channels.close(port) else {
            return;
        };
        let Some(domain) = self.domains.get_mut(&peer.0) else { return };
        domain.channels.set_state(remote, State::Unbound(domid));
        domain.ledger.route(remote).store(0, Ordering::Release);
        // A sender that was killed between setting the pending bit and announcing it must not
        // silence the port for ever.
        if let Some(channel) = domain.channels.get(remote) {
            let up = domain.ledger.upcall(channel.slot);
            let woken = up.is_pending(remote) && up.select(remote);
            if woken && let Ok(fd) = domain.upcall(channel.slot) {
                let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
            }
        }
    }

    /// Executes a request and returns the reply.
    pub(super) fn answer(&mut self, conn: ConnId, request: &Request) -> Result<Reply, Errno> {
        let domid = u16::try_from(request.b).map(DomId);
        match request.op {
            Op::Attach => self.attach(conn, request.a, domid.map_err(|_| Errno::INVAL)?, request.c),
            Op::Create => {
                self.create(DomainSpec {
                    domid: domid.map_err(|_| Errno::INVAL)?,
                    pages: usize::try_from(request.c & !DURABLE).map_err(|_| Errno::INVAL)?,
                    grant_frames: request.a,
                    durable: request.c & DURABLE != 0,
                })?;
                Ok(Reply::default())
            }
            Op::Destroy => self.destroy(domid.map_err(|_| Errno::INVAL)?).map(|()| Reply::default()),
            Op::GrantTables => Ok(Reply::new([self.version.to_word()], Vec::new())),
            Op::Audit => Ok(Reply::new(self.audit().to_words(), Vec::new())),
            Op::Grants => {
                let from = domid.map_err(|_| Errno::INVAL)?;
                let summary = self.grants(from, request.a as usize).ok_or(Errno::NOENT)?;
                Ok(Reply::new(summary.to_words(), Vec::new()))
            }
            _ => {
                let user = *self.attached.get(&conn).ok_or(Errno::PERM)?;
                self.answer_attached(user, request)
            }
        }
    }

    /// Opens one more connection and returns the client's end. The server's end is served from now
    /// on.
    pub(super) fn connect(&mut self) -> Result<OwnedFd, Errno> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (ours, theirs) = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
        self.fresh.push(ours);
        Ok(theirs)
    }

    /// Returns the connections that were opened since the last call.
    pub(super) fn take_fresh(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.fresh)
    }

    fn attach(&mut self, conn: ConnId, version: u32, domid: DomId, pid: u64) -> Result<Reply, Errno> {
        if version != VERSION {
            return Err(Errno::PROTONOSUPPORT);
        }
        if self.attached.contains_key(&conn) {
            return Err(Errno::ALREADY);
        }
        self.sweep();
        let domain = self.domains.get_mut(&domid.0).ok_or(Errno::NOENT)?;
        let stale = |slot| self.unswept.contains(&User { domid, slot });
        let slot = (0..SLOTS).find(|&s| domain.slots[s].is_none() && !stale(s)).ok_or(Errno::USERS)?;
        domain.ledger.upcall(slot).clear();
        let upcall = domain.upcall(slot)?;
        let _ = rustix::io::read(upcall, &mut [0; 8]);
        let mut fds = vec![upcall.try_clone().map_err(os)?];
        fds.insert(0, domain.memory.try_clone().map_err(os)?);
        fds.insert(1, domain.ledger_fd.try_clone().map_err(os)?);
        if let Some(connect) = &self.hooks.store {
            let (theirs, ours) = std::os::unix::net::UnixStream::pair().map_err(os)?;
            connect(domid, theirs.into());
            fds.push(ours.into());
        }
        domain.slots[slot] = Some(Attachment { pid: pid as u32, address: 0, leaving: false });
        self.attached.insert(conn, User { domid, slot });
        let [pages, grants, version] = domain.ledger.layout().to_words();
        Ok(Reply::new([slot as u64, pages, grants, version], fds))
    }

    fn answer_attached(&mut self, user: User, request: &Request) -> Result<Reply, Errno> {
        let target = || u16::try_from(request.b).map(DomId).map_err(|_| Errno::INVAL);
        match request.op {
            Op::Mapped => {
                let domain = self.domains.get_mut(&user.domid.0).ok_or(Errno::NOENT)?;
                if let Some(attachment) = &mut domain.slots[user.slot] {
                    attachment.address = request.c;
                }
                domain.ledger.bump_incarnation();
                Ok(Reply::default())
            }
            Op::Peer => {
                let domain = self.domains.get(&target()?.0).ok_or(Errno::NOENT)?;
                let living = domain.slots.iter().flatten().find(|a| a.address != 0 && !a.leaving);
                let (pid, address) = living.map_or((0, 0), |a| (a.pid, a.address));
                let [pages, grants, version] = domain.ledger.layout().to_words();
                let fds =
                    vec![domain.memory.try_clone().map_err(os)?, domain.ledger_fd.try_clone().map_err(os)?];
                Ok(Reply::new([u64::from(pid), address, pages, grants, version], fds))
            }
            Op::Upcall => {
                let domain = self.domains.get_mut(&target()?.0).ok_or(Errno::NOENT)?;
                let slot = Some(request.a as usize).filter(|s| *s < SLOTS).ok_or(Errno::INVAL)?;
                let fd = domain.upcall(slot)?.try_clone().map_err(os)?;
                Ok(Reply::new([], vec![fd]))
            }
            Op::Offer => {
                let domain = self.domains.get_mut(&user.domid.0).ok_or(Errno::NOENT)?;
                let port = domain.channels.open(user.slot, State::Unbound(target()?)).ok_or(Errno::NOSPC)?;
                domain.ledger.upcall(user.slot).reset(port);
                Ok(Reply::new([u64::from(port)], Vec::new()))
            }
            Op::Bind => self.bind(user, target()?, request.a),
            Op::Close => {
                let domain = self.domains.get(&user.domid.0).ok_or(Errno::NOENT)?;
                let port = request.a;
                if (port as usize) >= PORTS || domain.channels.get(port).is_none_or(|c| c.slot != user.slot) {
                    return Err(Errno::INVAL);
                }
                self.close(user.domid, port);
                Ok(Reply::default())
            }
            Op::Persist => {
                let domain = self.domains.get_mut(&user.domid.0).ok_or(Errno::NOENT)?;
                if request.name.is_empty() || !(1..=REGION_BYTES_MAX).contains(&request.c) {
                    return Err(Errno::INVAL);
                }
                let bytes = request.c.next_multiple_of(PAGE_SIZE as u64);
                if let Some((fd, has)) = domain.regions.get(&request.name) {
                    return if *has == bytes {
                        Ok(Reply::new([0], vec![fd.try_clone().map_err(os)?]))
                    } else {
                        Err(Errno::EXIST)
                    };
                }
                if domain.regions.len() == REGIONS_MAX {
                    return Err(Errno::NOSPC);
                }
                let fd = Backing::sealed("pregrant-persist", bytes as usize)?;
                let theirs = fd.try_clone().map_err(os)?;
                domain.regions.insert(request.name.clone(), (fd, bytes));
                Ok(Reply::new([1], vec![theirs]))
            }
            Op::Own => {
                let domain = self.domains.get_mut(&user.domid.0).ok_or(Errno::NOENT)?;
                if request.name.is_empty() {
                    return Err(Errno::INVAL);
                }
                if domain.owners.contains_key(&request.name) {
                    return Err(Errno::BUSY);
                }
                if domain.owners.len() == REGIONS_MAX {
                    return Err(Errno::NOSPC);
                }
                domain.owners.insert(request.name.clone(), user.slot);
                Ok(Reply::default())
            }
            Op::Disown => {
                let domain = self.domains.get_mut(&user.domid.0).ok_or(Errno::NOENT)?;
                if domain.owners.get(&request.name) != Some(&user.slot) {
                    return Err(Errno::INVAL);
                }
                domain.owners.remove(&request.name);
                Ok(Reply::default())
            }
            Op::Forget => {
                let domain = self.domains.get_mut(&user.domid.0).ok_or(Errno::NOENT)?;
                domain.regions.remove(&request.name).map(|_| Reply::default()).ok_or(Errno::NOENT)
            }
            Op::Persisted => {
                let domain = self.domains.get(&user.domid.0).ok_or(Errno::NOENT)?;
                domain
                    .regions
                    .keys()
                    .nth(request.a as usize)
                    .map(|name| Reply::name(name))
                    .ok_or(Errno::NOENT)
            }
            Op::Another => Ok(Reply::new([], vec![self.connect()?])),
            Op::Reclaim => {
                self.sweep();
                Ok(Reply::default())
            }
            Op::Attach | Op::Create | Op::Destroy | Op::Audit | Op::Grants | Op::GrantTables => {
                Err(Errno::INVAL)
            }
        }
    }

    /// Binds a new port as Xen's bind_interdomain does: `to` must have an unbound end at `remote`
    /// that waits for us.
    fn bind(&mut self, user: User, to: DomId, remote: u32) -> Result<Reply, Errno> {
        let peer = self.domains.get(&to.0).ok_or(Errno::NOENT)?;
        let channel = peer.channels.get(remote).ok_or(Errno::INVAL)?;
        if channel.state != State::Unbound(user.domid) {
            return Err(Errno::INVAL);
        }
        let own = self.domains.get_mut(&user.domid.0).ok_or(Errno::NOENT)?;
        let near = own.channels.open(user.slot, State::Bound(to, remote)).ok_or(Errno::NOSPC)?;
        own.ledger.upcall(user.slot).reset(near);
        own.channels.generation = own.channels.generation.wrapping_add(1);
        let generation = own.channels.generation;
        let route = Route::to(to.0, channel.slot, remote, generation);
        own.ledger.route(near).store(route.0, Ordering::Release);
        let peer = self.domains.get_mut(&to.0).ok_or(Errno::NOENT)?;
        peer.channels.set_state(remote, State::Bound(user.domid, near));
        peer.channels.generation = peer.channels.generation.wrapping_add(1);
        let route = Route::to(user.domid.0, user.slot, near, peer.channels.generation);
        peer.ledger.route(remote).store(route.0, Ordering::Release);
        Ok(Reply::new([u64::from(near)], Vec::new()))
    }

    /// Returns row number `row` of the summaries of a domain's grants. If the domain has fewer
    /// rows, returns the first row of the next domain that grants anything.
    fn grants(&self, from: DomId, row: usize) -> Option<GrantSummary> {
        self.domains.range(from.0..).find_map(|(&domid, domain)| {
            // As in `audit`.
            domain.reclaim();
            let row = if domid == from.0 { row } else { 0 };
            GrantSummary::of(DomId(domid), domain.granter()).into_iter().nth(row)
        })
    }

    pub(super) fn audit(&self) -> Audit {
        let mut audit =
            Audit { domains: self.domains.len(), attachments: self.attached.len(), ..Audit::default() };
        for domain in self.domains.values() {
            // A peer does not announce that it unmapped a dead process's page, so look for such
            // pages first.
            domain.reclaim();
            let count = pins::count(domain.granter());
            audit.grants += count.grants;
            audit.maptrack += count.in_use;
            audit.pins += count.pins;
            audit.channels += domain.channels.count();
            audit.regions += domain.regions.len();
            let owners = (0..domain.ledger.layout().pages).map(|p| domain.ledger.page_owner(p));
            audit.zombie_pages += owners.filter(|o| o.load(Ordering::Relaxed) == ZOMBIE).count();
        }
        audit
    }
}

fn os(e: std::io::Error) -> Errno {
    Errno::from_io_error(&e).unwrap_or(Errno::IO)
}
