//! Moving a frame allocates nothing, at either end, on any path, over many frames; and how much a
//! vif allocates at set-up. A test binary of its own, since the counting allocator is the whole
//! process's.
#![cfg(not(any(loom, miri)))]

use pregrant::PAGE_SIZE;
use pregrant::net::back::{BackVif, Polled, SharedControl, VifConfig};
use pregrant::net::front::{Diverted, FrontConfig, FrontVif, Granting, HookAction, HookFrame};
use pregrant::net::path::PathConfig;
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::GrantPool;
use pregrant::platform::local::LocalXen;
use pregrant::port::{Arena, Burst, FrameDesc, FramePort, Offload, Offloads, Payload};
use pregrant_testkit::bus::{connect, device};
use pregrant_testkit::counting::{Counting, calls, live};
use pregrant_testkit::rounds::rounds;
use pregrant_testkit::two_domains::{GUEST, HOST, RxEnds, SLOTS, TwoDomains, TxEnds, Way};

#[global_allocator]
static COUNTING: Counting = Counting;

/// Frames that are counted, for each way and direction.
fn frames() -> u64 {
    rounds(200_000, 1_000_000)
}
/// Frames before the count starts: tables and queues have grown to what they need.
const WARM_UP: u64 = 20_000;

/// A repeating sequence of frames: what a burst is filled from, and what arrives is checked
/// against.
struct Mix {
    lens: &'static [(usize, bool)],
    bytes: Vec<u8>,
    at: usize,
    /// The vif's, which allocates when it is made.
    control: SharedControl,
}

/// Small frames, frames just above the staging length, frames over many slots, segments to be cut.
const ALL_LENGTHS: &[(usize, bool)] = &{
    let mut lens = [(64, false); 512];
    lens[7] = (14, false);
    lens[60] = (256, false);
    lens[99] = (257, false);
    lens[130] = (1500, false);
    lens[200] = (4096, false);
    lens[201] = (4097, false);
    lens[300] = (200, true);
    lens[400] = (65535, true);
    lens[401] = (65535, false);
    lens
};
/// Frames that fit a buffer of 256 bytes.
const SHORT_ONLY: &[(usize, bool)] = &[(64, false), (256, false), (60, false), (128, false)];

impl Mix {
    fn new(lens: &'static [(usize, bool)]) -> Self {
        let bytes = (0..65535u32).map(|k| (k ^ (k >> 8)) as u8).collect();
        Self { lens, bytes, at: 0, control: SharedControl::default() }
    }

    fn next(&mut self) -> (&[u8], Offload) {
        let (len, gso) = self.lens[self.at % self.lens.len()];
        self.at += 1;
        let gso = if gso { (1, 1448) } else { (0, 0) };
        let blank = gso.0 != 0;
        let offload = Offload { gso_type: gso.0, gso_size: gso.1, csum_blank: blank, csum_ok: blank };
        (&self.bytes[..len], offload)
    }

    /// Checks that the next frame is this one. First, last and middle bytes are enough, since a
    /// frame of a given length is always the same.
    fn check(&mut self, bytes: &[u8], offload: Offload) {
        let (due, with) = self.next();
        let probes = |b: &[u8]| (b.len(), b.first().copied(), b.get(b.len() / 2).copied(), b.last().copied());
        assert_eq!((probes(bytes), offload), (probes(due), with));
    }
}

/// The remote side: returns frames of its mix, and checks those that it receives against the other
/// side's mix.
struct MixPort {
    mix: Mix,
    frames: u64,
    /// How the port accepts zero-copy payload.
    payload: Payload,
}

impl FramePort for MixPort {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn payload(&self) -> Payload {
        self.payload
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        for (bytes, offload) in frames.iter() {
            self.mix.check(bytes, offload);
            self.frames += 1;
        }
        frames.frames.len()
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let mut n = 0;
        while into.has_room() && n < 64 {
            let (bytes, offload) = self.mix.next();
            assert!(into.push(bytes, offload));
            n += 1;
        }
        n
    }
}

/// Sends until the port has `frames`.
fn send(
    domains: &TwoDomains,
    ends: &mut TxEnds,
    mix: &mut Mix,
    port: &mut MixPort,
    arenas: &mut (Arena, Arena),
    frames: u64,
) {
    let (burst, arena) = arenas;
    while port.frames < frames {
        let at = mix.at;
        burst.clear();
        for _ in 0..64 {
            let (bytes, offload) = mix.next();
            if !burst.push(bytes, offload) {
                break;
            }
        }
        let sent =
            ends.front.send(&domains.guest, &ends.front_chan, &burst.burst()).expect("grants to be had");
        mix.at = at + sent;
        while ends
            .back
            .poll(&domains.host, GUEST, &ends.back_chan, port, arena, &mix.control)
            .expect("an honest front")
            == Polled::More
        {}
        ends.front.reclaim(&domains.guest, 1).expect("an honest back");
    }
}

/// Receives until `frames` have arrived.
fn receive(
    domains: &TwoDomains,
    ends: &mut RxEnds,
    mix: &mut Mix,
    port: &mut MixPort,
    arena: &mut Arena,
    frames: u64,
) {
    while ends.front.stats().frames < frames {
        ends.front.post(&domains.guest, &ends.front_chan).expect("grants to be had");
        ends.back.poll(&domains.host, GUEST, &ends.back_chan, port, &mix.control).expect("an honest front");
        arena.clear();
        ends.front.recv(arena, 1).expect("an honest back");
        for (bytes, offload) in arena.burst().iter() {
            mix.check(bytes, offload);
        }
    }
}

fn tx(way: Way, granting: Granting, lens: &'static [(usize, bool)]) {
    tx_to(Payload::Private, way, granting, lens);
}

fn tx_to(payload: Payload, way: Way, granting: Granting, lens: &'static [(usize, bool)]) {
    let domains = TwoDomains::new();
    let mut ends = domains.tx(way, granting, 0);
    let mut arenas = (Arena::new(), Arena::new());
    let (mut mix, mut port) = (Mix::new(lens), MixPort { mix: Mix::new(lens), frames: 0, payload });
    send(&domains, &mut ends, &mut mix, &mut port, &mut arenas, WARM_UP);
    let frames = frames(); // which may allocate
    let before = (calls(), live());
    send(&domains, &mut ends, &mut mix, &mut port, &mut arenas, WARM_UP + frames);
    assert_eq!((calls(), live()), before, "TX by {way:?} allocates");
    check_platform(&domains, way, ends.back.stats().granted, lens);
    ends.close(&domains);
}

fn rx(way: Way, granting: Granting, lens: &'static [(usize, bool)]) {
    let domains = TwoDomains::new();
    let mut ends = domains.rx(way, granting, 0, false);
    let mut arena = Arena::new();
    let (mut mix, mut port) =
        (Mix::new(lens), MixPort { mix: Mix::new(lens), frames: 0, payload: Payload::Private });
    receive(&domains, &mut ends, &mut mix, &mut port, &mut arena, WARM_UP);
    let frames = frames(); // which may allocate
    let before = (calls(), live());
    receive(&domains, &mut ends, &mut mix, &mut port, &mut arena, WARM_UP + frames);
    assert_eq!((calls(), live()), before, "RX by {way:?} allocates");
    check_platform(&domains, way, ends.back.stats().granted, lens);
    ends.close(&domains);
}

/// Two pollers wake each other at most once; a frame that fits its buffer needs no grant operation.
fn check_platform(domains: &TwoDomains, way: Way, granted: u64, lens: &[(usize, bool)]) {
    let counts = domains.xen.counts();
    assert!(counts.notifications <= 2, "{} events between two pollers", counts.notifications);
    if matches!(way, Way::Staging(_)) && (way.copy_only() || lens == SHORT_ONLY) {
        assert_eq!((counts.copies, granted), (0, 0));
    } else {
        assert!(counts.copies > 0 && granted > 0, "the frames that are to use grants do");
    }
}

#[test]
fn the_counter_counts() {
    let before = (calls(), live());
    let kept = std::hint::black_box(vec![1u8; 100]);
    assert_eq!((calls(), live()), (before.0 + 1, before.1 + 100));
    drop(kept);
    assert_eq!((calls(), live()), (before.0 + 1, before.1));
}

#[test]
fn copy_allocates_nothing() {
    tx(Way::Copy, Granting::PerFrame, ALL_LENGTHS);
    rx(Way::Copy, Granting::PerFrame, ALL_LENGTHS);
}

#[test]
fn map_allocates_nothing() {
    tx(Way::Map, Granting::Standing, ALL_LENGTHS);
    tx_to(Payload::ZeroCopy, Way::Map, Granting::Standing, ALL_LENGTHS);
}

#[test]
fn persistent_allocates_nothing() {
    tx(Way::Persistent(256), Granting::Standing, ALL_LENGTHS);
    tx_to(Payload::Named, Way::Persistent(256), Granting::Standing, ALL_LENGTHS);
    rx(Way::Persistent(256), Granting::Standing, ALL_LENGTHS);
}

#[test]
fn staging_allocates_nothing() {
    tx(Way::Staging(256), Granting::PerFrame, SHORT_ONLY);
    rx(Way::Staging(256), Granting::PerFrame, SHORT_ONLY);
}

#[test]
fn staging_with_frames_that_fall_back_allocates_nothing() {
    tx(Way::Staging(256), Granting::PerFrame, ALL_LENGTHS);
    rx(Way::Staging(256), Granting::PerFrame, ALL_LENGTHS);
}

#[test]
fn staging_of_every_slot_allocates_nothing() {
    tx(Way::Staging(65535), Granting::PerFrame, ALL_LENGTHS);
    tx_to(Payload::Named, Way::Staging(65535), Granting::PerFrame, ALL_LENGTHS);
    rx(Way::Staging(65535), Granting::PerFrame, ALL_LENGTHS);
}

/// A network that sends frames of all lengths and accepts everything.
struct Flood {
    mix: Mix,
    took: u64,
}

impl FramePort for Flood {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        self.took += frames.iter().count() as u64;
        frames.frames.len()
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let mut n = 0;
        while into.has_room() && n < 16 {
            let (bytes, _) = self.mix.next();
            assert!(into.push(bytes, Offload::default()));
            n += 1;
        }
        n
    }
}

/// Each action in turn, with heads that are changed; frames are sent on in their buffers and by a
/// copy.
#[test]
fn the_frame_hook_allocates_nothing() {
    let xen = LocalXen::new();
    let (guest, host) = (xen.domain(GUEST.0), xen.domain(HOST.0));
    let (mut fb, mut bb) = device();
    let len = DataLen::new(2048);
    let config =
        FrontConfig { staging: Buffers { sent_on: true, ..Buffers::of(len, len) }, ..FrontConfig::default() };
    let mut front = FrontVif::new(HOST, config, false);
    let mut back = BackVif::new(GUEST, 0, VifConfig::default());
    connect((&guest, &mut front, &mut fb), (&host, &mut back, &mut bb));
    assert!(front.queue(0).unwrap().tx().sends_on());
    let (mut out, mut diverted, mut scratch) = (Arena::new(), Diverted::new(), Arena::new());
    let mut flood = Flood { mix: Mix::new(ALL_LENGTHS), took: 0 };
    let mut redirected = 0;
    let mut play = |frames: u64| {
        while front.queue(0).unwrap().hook_stats().frames() < frames {
            back.poll_rx(&host, 0, &mut flood).expect("an honest front");
            out.clear();
            let most = front.room(0) as usize;
            let mut k = 0;
            let hook = |f: &mut HookFrame| {
                k += 1;
                f.head_mut()[0] = k;
                [HookAction::Tx, HookAction::Pass, HookAction::Tx, HookAction::Drop, HookAction::Redirect(1)]
                    [usize::from(k) % 5]
            };
            front
                .queue_mut(0)
                .unwrap()
                .recv_hooked(&guest, &mut out, &mut diverted, (1, most), hook)
                .expect("an honest back");
            redirected += diverted.runs().map(|(_, burst)| burst.frames.len() as u64).sum::<u64>();
            while back.poll_tx(&host, 0, &mut flood, &mut scratch) == Ok(Polled::More) {}
            front.queue_mut(0).unwrap().reclaim(&guest, 1).expect("an honest back");
        }
    };
    play(WARM_UP);
    let frames = frames(); // which may allocate
    let before = (calls(), live());
    play(WARM_UP + frames);
    assert_eq!((calls(), live()), before, "the hook's receiver allocates");
    let stats = front.queue(0).unwrap().hook_stats();
    assert_eq!((stats.redirected, stats.sent_on + stats.sent_copied), (redirected, flood.took));
    assert!(stats.sent_on > 0 && stats.sent_copied > 0 && stats.passed > 0 && stats.dropped > 0);
}

/// Frames of a guest's own memory: in pages that the back has, in pages that it has no room for,
/// and over several.
#[test]
fn frames_from_own_pages_allocate_nothing() {
    const PAGES: u64 = 512;
    let xen = LocalXen::new();
    let (guest, host) = (xen.domain(GUEST.0), xen.domain(HOST.0));
    let (mut fb, mut bb) = device();
    let staged = FrontConfig::default();
    let config = FrontConfig { staging: Buffers::NONE, gref_mapping: true, ..staged };
    let mut front = FrontVif::new(HOST, config, false);
    let memory = guest.per_frame().expect("single grants").pages(PAGES as usize).expect("pages");
    assert!(front.use_memory(memory, PAGES as usize).is_ok());
    let mut back = BackVif::new(
        GUEST,
        0,
        VifConfig {
            paths: PathConfig { gref_mapping: 512 + 64, ..PathConfig::default() },
            ..VifConfig::default()
        },
    );
    connect((&guest, &mut front, &mut fb), (&host, &mut back, &mut bb));
    let (mut scratch, mut flood) = (Arena::new(), Flood { mix: Mix::new(SHORT_ONLY), took: 0 });
    let mut sent = 0;
    let mut play = |frames: u64, asks: bool| {
        while sent < frames {
            let page = if sent % 3 == 0 { sent % PAGES } else { sent % 40 };
            let len = if sent % 100 == 0 && page < 400 { 9000 } else { 60 + page as u32 };
            let frame = FrameDesc { at: page as u32 * PAGE_SIZE as u32, len, offload: Offload::default() };
            sent += front.send_own(&guest, 0, &[frame]).expect("standing grants") as u64;
            while back.poll_tx(&host, 0, &mut flood, &mut scratch) == Ok(Polled::More) {}
            front.queue_mut(0).unwrap().reclaim(&guest, 1).expect("an honest back");
            if asks {
                front.turn(&guest).expect("an honest back");
                while back.poll_ctrl(&host) == Ok(Polled::More) {}
            }
        }
    };
    play(WARM_UP, true);
    let frames = frames(); // which may allocate
    let before = (calls(), live());
    play(WARM_UP + frames, false);
    assert_eq!((calls(), live()), before, "a frame from a page of the guest's own allocates");
    let stats = front.queue(0).unwrap().tx().cache().unwrap().stats();
    assert!(stats.hits > frames / 3 && stats.copied_to_pool > frames / 10, "{stats:?}");
    assert_eq!(flood.took, WARM_UP + frames);
}

/// Idle pages are released because memory is short: then there is no memory for a list of them.
#[test]
fn to_give_idle_pages_up_allocates_nothing() {
    let xen = LocalXen::new();
    let (guest, host) = (xen.domain(GUEST.0), xen.domain(HOST.0));
    let mut taken = 0;
    // The first vif has the platform's list of free grants grow.
    for _ in 0..2 {
        let (mut fb, mut bb) = device();
        let mut front = FrontVif::new(HOST, FrontConfig::default(), true);
        let mut back = BackVif::new(GUEST, 0, VifConfig::default());
        connect((&guest, &mut front, &mut fb), (&host, &mut back, &mut bb));
        back.close(&host, &mut bb, None).expect("a map");
        for _ in 0..4 {
            front.step(&guest, &mut fb).expect("a map");
        }
        assert!(front.kept_pages() > 64, "{}", front.kept_pages());
        let before = calls();
        front.release_idle(&guest);
        taken = calls() - before;
        assert_eq!(front.kept_pages(), 0);
    }
    assert_eq!(taken, 0, "what is released is written to a list");
}

/// Everything that both ends of one queue allocate, with the arenas of the worker and of the
/// guest's stack. Ordinary pages, one for each slot, hold the frames and do not count.
#[test]
fn a_vif_with_staging_takes_less_than_a_mebibyte() {
    let domains = TwoDomains::new();
    let before = live();
    let tx = domains.tx(Way::Staging(256), Granting::PerFrame, 0);
    let rx = domains.rx(Way::Staging(256), Granting::PerFrame, 0, true);
    let ends = live() - before;
    let arenas = (Arena::new(), Arena::new()); // the back worker's for TX, the front's for RX
    let all = live() - before;
    let frames = 2 * SLOTS as isize * PAGE_SIZE as isize;
    let boxes =
        (size_of_val(&tx.front) + size_of_val(&tx.back) + size_of_val(&rx.front) + size_of_val(&rx.back))
            as isize;
    let staging: usize = [tx.front.chain(), rx.front.chain()]
        .iter()
        .filter_map(|chain| chain.staging())
        .map(|a| a.memory_bytes())
        .sum();
    let taken = all - frames + boxes;
    println!(
        "a vif with staging 256/256: {} KiB beside its frames: {} KiB staging areas and lists, {} KiB arenas, {} KiB rest",
        taken / 1024,
        staging / 1024,
        (all - ends) / 1024,
        (taken - (all - ends) - staging as isize) / 1024,
    );
    assert!(taken < 1 << 20, "{taken} bytes");
    drop(arenas);
    tx.close(&domains);
    rx.close(&domains);
    domains.assert_empty();
}
