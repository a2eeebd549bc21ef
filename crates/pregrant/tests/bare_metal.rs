//! The platform for guests without an operating system, and its connection to xenstore. A machine
//! in plain memory plays Xen; its driver domain reads the guest's grant table as Xen does.
//!
//! ```text
//!   guest: FrontVif <BareMetal<Xen>>, Client <DomainRing>          driver domain: BackVif <Host>, Client <LocalLink>
//!            grants v1, rings, frames in `Xen.memory`; channels in `Xen.ends`; page 1: xenstore's ring <--Pump--> LocalStore
//! ```
#![cfg(not(any(loom, miri)))]

use pregrant::net::back::{BackVif, Polled, VifConfig};
use pregrant::net::front::{FrontConfig, FrontVif};
use pregrant::platform::bare::{BareMetal, Hypercalls};
use pregrant::platform::local::Pages;
use pregrant::platform::{
    Access, Clock, CopyOp, Events, GrantOps, GrantPool, InUse, LocalBytes, MapError, PeerMem, Platform,
    ReadySet,
};
use pregrant::port::{Arena, Burst, FramePort, Offload, Offloads};
use pregrant::shm::SharedBytes;
use pregrant::wire::grant::{GTF_PERMIT_ACCESS, GTF_READING, GTF_READONLY, GrantEntryV1, GrantStatus};
use pregrant::xenbus::bus::StoreBus;
use pregrant::xenbus::toolstack::Vif;
use pregrant::xenbus::{Class, Device, Side};
use pregrant::xenstore::domain_ring::DomainRingError;
use pregrant::xenstore::{Client, DomainRing, StoreChannel, Transport};
use pregrant::{DomId, EvtchnPort, GrantRef, PAGE_SIZE, PlatformError};
use pregrant_xenstored::{LocalLink, LocalStore};
use std::cell::RefCell;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const GUEST: DomId = DomId(5);
const HOST: DomId = DomId(0);
/// Frame 0 has the grant table, frame 1 is xenstore's.
const STORE_FRAME: usize = 1;
const FRAMES: usize = 2048;

/// Memory and event channels of the machine.
#[derive(Clone)]
struct Xen {
    memory: Pages,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// For each frame, whether it is allocated.
    used: Vec<bool>,
    /// The ends by port number, which is unique over both domains.
    ends: Vec<Option<End>>,
}

#[derive(Clone, Copy)]
struct End {
    of: DomId,
    peer: Option<usize>,
    pending: bool,
    masked: bool,
}

impl Xen {
    fn new() -> Self {
        let mut used = vec![false; FRAMES];
        used[..=STORE_FRAME].fill(true);
        Self { memory: Pages::new(FRAMES), state: Arc::new(Mutex::new(State { used, ends: vec![None] })) }
    }

    fn state<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        act(&mut self.state.lock().unwrap())
    }

    fn open(&self, of: DomId, peer: Option<usize>) -> usize {
        self.state(|s| {
            s.ends.push(Some(End { of, peer, pending: peer.is_some(), masked: false }));
            s.ends.len() - 1
        })
    }

    fn send_by(&self, port: usize) {
        self.state(|s| {
            let peer = s.ends[port].and_then(|end| end.peer);
            if let Some(Some(end)) = peer.map(|peer| &mut s.ends[peer]) {
                end.pending = true;
            }
        });
    }

    fn take_of(&self, of: DomId, into: &mut Vec<EvtchnPort>) {
        self.state(|s| {
            for (port, end) in s.ends.iter_mut().enumerate() {
                if let Some(end) = end.as_mut().filter(|end| end.of == of && end.pending && !end.masked) {
                    (end.pending, end.masked) = (false, true);
                    into.push(EvtchnPort(port as u32));
                }
            }
        });
    }

    fn unmask_end(&self, port: usize) {
        self.state(|s| s.ends[port].as_mut().expect("an open end").masked = false);
    }

    fn close_end(&self, port: usize) {
        self.state(|s| {
            let peer = s.ends[port].take().and_then(|end| end.peer);
            if let Some(Some(end)) = peer.map(|peer| &mut s.ends[peer]) {
                end.peer = None;
            }
        });
    }

    /// Flags and frame of an entry, which must be the host's to use.
    fn entry(&self, gref: GrantRef, write: bool) -> Result<usize, GrantStatus> {
        let at = gref.0 as usize * GrantEntryV1::SIZE;
        let words = [at, at + 4].map(|at| self.memory.load_u32(at).unwrap_or(0));
        let GrantEntryV1 { flags, domid, frame } = GrantEntryV1::from_words(words);
        if flags & GTF_PERMIT_ACCESS == 0 {
            return Err(GrantStatus::BAD_GNTREF);
        }
        if domid != HOST.0 || (write && flags & GTF_READONLY != 0) {
            return Err(GrantStatus::PERMISSION_DENIED);
        }
        Ok(frame as usize)
    }

    /// The mark of Xen in an entry while it is mapped.
    fn mark(&self, gref: GrantRef, reading: bool) {
        let at = gref.0 as usize * GrantEntryV1::SIZE;
        let word = self.memory.load_u32(at).unwrap();
        let bit = u32::from(GTF_READING);
        assert!(self.memory.store_u32(at, if reading { word | bit } else { word & !bit }));
    }

    fn grants(&self) -> usize {
        (0..512).filter(|gref| self.memory.load_u32(gref * GrantEntryV1::SIZE) != Some(0)).count()
    }

    fn taken(&self) -> usize {
        self.state(|s| s.used.iter().filter(|used| **used).count())
    }
}

// SAFETY: frames of `memory`, which lives as long as this; each is given to one owner at a time.
unsafe impl Hypercalls for Xen {
    fn pages(&self, count: usize) -> Option<NonNull<u8>> {
        let first = self.state(|s| {
            let first = s.used.windows(count).position(|run| !run.contains(&true))?;
            s.used[first..first + count].fill(true);
            Some(first)
        })?;
        // SAFETY: inside of the memory.
        Some(unsafe { self.memory.base().add(first * PAGE_SIZE) })
    }
    fn free(&self, base: NonNull<u8>, count: usize) {
        let first = self.frame(base) as usize;
        self.state(|s| s.used[first..first + count].fill(false));
    }
    fn frame(&self, page: NonNull<u8>) -> u32 {
        ((page.as_ptr() as usize - self.memory.base().as_ptr() as usize) / PAGE_SIZE) as u32
    }
    fn grant_table(&self) -> (NonNull<u8>, usize) {
        (self.memory.base(), 512)
    }
    fn alloc_unbound(&self, to: DomId) -> Result<EvtchnPort, i32> {
        assert_eq!(to, HOST);
        Ok(EvtchnPort(self.open(GUEST, None) as u32))
    }
    fn bind_interdomain(&self, _: DomId, _: EvtchnPort) -> Result<EvtchnPort, i32> {
        Err(38)
    }
    fn close(&self, port: EvtchnPort) {
        self.close_end(port.0 as usize);
    }
    fn send(&self, port: EvtchnPort) {
        self.send_by(port.0 as usize);
    }
    fn take(&self, into: &mut Vec<EvtchnPort>) {
        self.take_of(GUEST, into);
    }
    fn unmask(&self, port: EvtchnPort) {
        self.unmask_end(port.0 as usize);
    }
    fn block(&self, _: Option<Duration>) {}
    fn now_ns(&self) -> u64 {
        0
    }
}

struct Host(Xen);

/// Pages of the guest that it has mapped, which are neighbours.
struct Mapped {
    xen: Xen,
    refs: Vec<GrantRef>,
    first: usize,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.refs.iter().for_each(|gref| self.xen.mark(*gref, false));
    }
}

// SAFETY: frames of the machine's memory, which lives as long as `xen`.
unsafe impl SharedBytes for Mapped {
    fn base(&self) -> NonNull<u8> {
        // SAFETY: checked when it was mapped.
        unsafe { self.xen.memory.base().add(self.first * PAGE_SIZE) }
    }
    fn len(&self) -> usize {
        self.refs.len() * PAGE_SIZE
    }
}

// SAFETY: a map shows the frames of its references, which are neighbours.
unsafe impl PeerMem for Host {
    type Map = Mapped;
    fn map(&self, _: DomId, refs: &[GrantRef], acc: Access) -> Result<Mapped, MapError> {
        let mut frames = Vec::new();
        for (index, gref) in refs.iter().enumerate() {
            let frame = self.0.entry(*gref, acc == Access::ReadWrite);
            frames.push(frame.map_err(|status| MapError { index: Some(index), status })?);
        }
        assert!(frames.windows(2).all(|two| two[0] + 1 == two[1]), "this machine maps neighbours only");
        refs.iter().for_each(|gref| self.0.mark(*gref, true));
        Ok(Mapped { xen: self.0.clone(), refs: refs.to_vec(), first: frames[0] })
    }
    fn unmap(&self, done: &mut Vec<Mapped>) {
        done.clear();
    }
    fn copy(&self, _: DomId, mut local: LocalBytes<'_>, ops: &mut [CopyOp]) -> Result<(), PlatformError> {
        for op in ops {
            let (at, len) = (op.at as usize, op.len as usize);
            let write = matches!(local, LocalBytes::ToPeer(_));
            op.status = match self.0.entry(op.gref, write) {
                Err(status) => status,
                Ok(frame) => {
                    let from = frame * PAGE_SIZE + usize::from(op.offset);
                    let done = match &mut local {
                        LocalBytes::FromPeer(bytes) => self.0.memory.copy_out(from, &mut bytes[at..at + len]),
                        LocalBytes::ToPeer(bytes) => self.0.memory.copy_in(from, &bytes[at..at + len]),
                    };
                    if done { GrantStatus::OKAY } else { GrantStatus::BAD_COPY_ARG }
                }
            };
        }
        Ok(())
    }
    fn grant_ops(&self) -> GrantOps {
        GrantOps::default()
    }
}

// SAFETY: it gives no region.
unsafe impl GrantPool for Host {
    type Region = Mapped;
    fn alloc(&self, _: DomId, _: Access, _: &mut [GrantRef]) -> Result<Mapped, PlatformError> {
        Err(PlatformError { op: "grant a page of the host", code: 95 })
    }
    fn release(&self, _: Mapped) -> Result<(), InUse<Mapped>> {
        Ok(())
    }
    fn per_frame(&self) -> Option<&dyn pregrant::platform::GrantTable<Region = Mapped>> {
        None
    }
}

struct HostEnd(Xen, usize);

impl Drop for HostEnd {
    fn drop(&mut self) {
        self.0.close_end(self.1);
    }
}

impl Events for Host {
    type Chan = HostEnd;
    fn offer(&self, _: DomId) -> Result<(HostEnd, EvtchnPort), PlatformError> {
        Err(PlatformError { op: "offer a channel of the host", code: 95 })
    }
    fn bind(&self, _: DomId, port: EvtchnPort) -> Result<HostEnd, PlatformError> {
        let near = self.0.open(HOST, Some(port.0 as usize));
        self.0.state(|s| s.ends[port.0 as usize].as_mut().expect("an offered end").peer = Some(near));
        Ok(HostEnd(self.0.clone(), near))
    }
    fn adopt(&self, chan: HostEnd) -> Result<HostEnd, PlatformError> {
        Ok(chan)
    }
    fn local(&self, chan: &HostEnd) -> EvtchnPort {
        EvtchnPort(chan.1 as u32)
    }
    fn notify(&self, chan: &HostEnd) {
        self.0.send_by(chan.1);
    }
    fn unmask(&self, chan: &HostEnd) {
        self.0.unmask_end(chan.1);
    }
    fn wait(&self, ready: &mut ReadySet, _: Option<Duration>) {
        ready.ports.clear();
        self.0.take_of(HOST, &mut ready.ports);
    }
}

impl Clock for Host {
    fn now_ns(&self) -> u64 {
        0
    }
}

impl Platform for Host {
    type Grants = Self;
    type Peer = Self;
    type Events = Self;
    type Clock = Self;
    fn domid(&self) -> DomId {
        HOST
    }
    fn grants(&self) -> &Self {
        self
    }
    fn peer(&self) -> &Self {
        self
    }
    fn events(&self) -> &Self {
        self
    }
    fn clock(&self) -> &Self {
        self
    }
}

/// Xenstore's end of the page: passes requests to a server, and answers back. It runs when the
/// guest waits, and moves at most `STEP` bytes at a time, so that both rings fill up and wrap
/// around.
struct Pump {
    page: Mapped,
    link: LocalLink,
    waiting: Vec<u8>,
    /// Events that the guest sent.
    rung: usize,
}

const STEP: usize = 300;

impl Pump {
    fn turn(&mut self) {
        let index = |at| self.page.load_u32(at).unwrap();
        let [req_cons, req_prod, rsp_cons, rsp_prod] = [2048, 2052, 2056, 2060].map(index);
        assert!(req_prod.wrapping_sub(req_cons) <= 1024 && rsp_prod.wrapping_sub(rsp_cons) <= 1024);
        let n = (req_prod.wrapping_sub(req_cons) as usize).min(STEP);
        let byte = |at: usize| {
            let mut byte = [0];
            assert!(self.page.copy_out(at, &mut byte));
            byte[0]
        };
        let bytes: Vec<u8> = (0..n).map(|i| byte((req_cons as usize + i) % 1024)).collect();
        self.link.send(&bytes).unwrap();
        assert!(self.page.store_u32(2048, req_cons.wrapping_add(n as u32)));
        let mut some = [0; 4096];
        let n = self.link.recv(&mut some, Some(Duration::ZERO)).unwrap();
        self.waiting.extend(&some[..n]);
        let n = (1024 - rsp_prod.wrapping_sub(rsp_cons) as usize).min(self.waiting.len()).min(STEP);
        for (i, byte) in self.waiting.drain(..n).enumerate() {
            assert!(self.page.copy_in(1024 + (rsp_prod as usize + i) % 1024, &[byte]));
        }
        assert!(self.page.store_u32(2060, rsp_prod.wrapping_add(n as u32)));
    }
}

#[derive(Clone)]
struct TestChannel(Rc<RefCell<Pump>>);

impl StoreChannel for TestChannel {
    fn notify(&mut self) {
        self.0.borrow_mut().rung += 1;
    }
    fn wait(&mut self, max: Option<Duration>) -> Option<Duration> {
        self.0.borrow_mut().turn();
        max.map(|max| max.saturating_sub(Duration::from_millis(1)))
    }
}

type GuestStore = Client<DomainRing<Mapped, TestChannel>>;

/// The page of reference 1, which Xen reserves for xenstore.
fn store_page(xen: &Xen) -> Mapped {
    Mapped { xen: xen.clone(), refs: vec![GrantRef(1)], first: STORE_FRAME }
}

fn guest_store(xen: &Xen, store: &LocalStore, start: u32) -> GuestStore {
    let page = store_page(xen);
    for at in [2048, 2052, 2056, 2060] {
        assert!(page.store_u32(at, start));
    }
    let pump = Pump { page: store_page(xen), link: store.link(GUEST), waiting: Vec::new(), rung: 0 };
    let channel = TestChannel(Rc::new(RefCell::new(pump)));
    Client::new(DomainRing::new(page, channel).unwrap())
}

fn machine() -> (Xen, LocalStore) {
    let store = LocalStore::new();
    store.with_server(|server| server.introduce(GUEST)).unwrap();
    (Xen::new(), store)
}

#[test]
fn xenstores_ring_carries_messages_longer_than_itself_across_its_end_and_its_wrap() {
    let (xen, store) = machine();
    // As if a boot loader had used it, just before the indices wrap.
    let mut xs = guest_store(&xen, &store, u32::MAX - 700);
    for k in 0..20 {
        let value = vec![b'a' + k; 100 * usize::from(k) + 1];
        xs.write("data/long", &value).unwrap();
        assert_eq!(xs.read("data/long").unwrap(), value);
    }
    xs.watch("data", "token").unwrap();
    assert!(xs.next_event(Some(Duration::ZERO)).unwrap().is_some());
    store.client(HOST).write("/local/domain/5/data/x", "1").unwrap();
    let came = std::iter::from_fn(|| xs.next_event(Some(Duration::from_secs(1))).unwrap());
    assert!(came.take(5).any(|event| event.path == "data/x"));
}

#[test]
fn indices_that_cannot_be_end_xenstores_ring() {
    struct Silent;
    impl StoreChannel for Silent {
        fn notify(&mut self) {}
        fn wait(&mut self, max: Option<Duration>) -> Option<Duration> {
            max
        }
    }
    let (xen, _) = machine();
    for (at, wrong) in [(2048, 5), (2048, u32::MAX - 1024), (2060, 1025), (2060, u32::MAX)] {
        let page = store_page(&xen);
        [2048, 2052, 2056, 2060].iter().for_each(|at| assert!(page.store_u32(*at, 0)));
        let mut ring = DomainRing::new(store_page(&xen), Silent).unwrap();
        assert!(page.store_u32(at, wrong));
        let failed = if at == 2048 { ring.send(b"x").err() } else { ring.recv(&mut [0; 8], None).err() };
        assert!(matches!(failed, Some(DomainRingError::Indices { .. })), "{at} {wrong}: {failed:?}");
    }
}

#[test]
fn a_grant_ends_only_when_xen_has_let_go_of_the_page() {
    let (xen, _) = machine();
    let guest = BareMetal::new(GUEST, xen.clone());
    let (before, mut refs) = (xen.taken(), [GrantRef::NONE; 3]);
    let region = guest.grants().alloc(HOST, Access::ReadOnly, &mut refs).unwrap();
    assert_eq!((xen.entry(refs[0], false).is_ok(), xen.entry(refs[0], true).is_ok()), (true, false));
    let mut map = vec![Host(xen.clone()).map(GUEST, &refs[..2], Access::ReadOnly).unwrap()];
    let InUse(region) = guest.grants().release(region).expect_err("two pages are mapped");
    assert_eq!((xen.grants(), xen.taken()), (2, before + 3), "the third has ended, the memory stays");
    Host(xen.clone()).unmap(&mut map);
    assert!(guest.grants().release(region).is_ok());
    assert_eq!((xen.grants(), xen.taken()), (0, before));
    // More than the table has entries: nothing of it stays.
    let most = &mut [GrantRef::NONE; 505];
    assert!(guest.grants().alloc(HOST, Access::ReadWrite, most).is_err());
    assert_eq!((xen.grants(), xen.taken()), (0, before));
    let most = &mut most[..504];
    let region = guest.grants().alloc(HOST, Access::ReadWrite, most).unwrap();
    assert!(most.iter().all(|gref| gref.0 >= GrantRef::FIRST_FREE.0));
    assert!(guest.grants().release(region).is_ok());
}

/// The port of the vif: keeps the frames that the guest sent, and returns each of them.
#[derive(Default)]
struct Echo {
    took: Vec<Vec<u8>>,
    given: usize,
}

impl FramePort for Echo {
    fn caps(&self) -> Offloads {
        Offloads::default()
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        self.took.extend(frames.iter().map(|(frame, _)| frame.to_vec()));
        frames.frames.len()
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let before = self.given;
        while self.given < self.took.len() && into.has_room() {
            assert!(into.push(&self.took[self.given], Offload::default()));
            self.given += 1;
        }
        self.given - before
    }
}

#[test]
fn a_vif_without_an_operating_system() {
    let (xen, store) = machine();
    let vif = Vif::new(GUEST, HOST, 0, [0x00, 0x16, 0x3e, 0, 5, 0]);
    vif.create(&mut store.client(HOST)).unwrap();
    let mut guest_xs = guest_store(&xen, &store, 0);
    let front_device = Device::front(&mut guest_xs, Class::VIF, 0).unwrap();
    let (back_device, mut host_xs) = (Device::new(vif.id, Side::Back), store.client(HOST));
    let (guest, host) = (BareMetal::new(GUEST, xen.clone()), Host(xen.clone()));
    let mut front = FrontVif::<BareMetal<Xen>>::new(HOST, FrontConfig::default(), false);
    let mut back = BackVif::<Host>::new(GUEST, 0, VifConfig::default());
    let mut settle = |front: &mut FrontVif<BareMetal<Xen>>, back: &mut BackVif<Host>| {
        for _ in 0..10 {
            let mut bus = StoreBus { device: &back_device, xs: &mut host_xs };
            back.step(&host, &mut bus, &mut |_, _| None).map_err(|e| e.to_string()).unwrap();
            let mut bus = StoreBus { device: &front_device, xs: &mut guest_xs };
            front.step(&guest, &mut bus).map_err(|e| e.to_string()).unwrap();
        }
    };
    settle(&mut front, &mut back);
    assert!(front.is_live());

    let (mut port, mut scratch, mut out, mut came) =
        (Echo::default(), Arena::new(), Arena::new(), Arena::new());
    let (mut received, mut ready) = (0, ReadySet::default());
    for round in 0..200_usize {
        let frame: Vec<u8> = (0..60 + round * 7).map(|k| (k ^ round) as u8).collect();
        out.clear();
        assert!(out.push(&frame, Offload::default()));
        let queue = front.queue_mut(0).unwrap();
        assert_eq!(queue.send(&guest, &out.burst()).unwrap(), 1);
        host.wait(&mut ready, None);
        while back.poll_tx(&host, 0, &mut port, &mut scratch).unwrap() == Polled::More {}
        while back.poll_rx(&host, 0, &mut port).unwrap() == Polled::More {}
        guest.events().wait(&mut ready, Some(Duration::ZERO));
        queue.reclaim(&guest, 1).unwrap();
        came.clear();
        queue.recv(&guest, &mut came, 1).unwrap();
        for (got, _) in came.burst().iter() {
            assert_eq!(got, port.took[received]);
            received += 1;
        }
    }
    assert_eq!((received, port.took.len()), (200, 200));

    front.close(&mut StoreBus { device: &front_device, xs: &mut store.client(GUEST) }, None).unwrap();
    settle(&mut front, &mut back);
    assert!(front.is_closed());
    front.release_idle(&guest);
    assert_eq!(xen.grants(), 0);
}
