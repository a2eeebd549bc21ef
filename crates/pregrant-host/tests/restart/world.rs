//! The machine of these tests: guests with a vif each, backs as processes, and memory in which
//! these keep account over their deaths.

use pregrant::DomId;
use pregrant::shm::SharedBytes;
use pregrant::xenbus::DeviceId;
use pregrant::xenbus::toolstack::{self, Vif};
use pregrant::xenstore::Client;
use pregrant_host::UnixTransport;
use pregrant_loopback::{DomainSpec, Loopback, Persistent};
use pregrant_test_machine::processes::Host;
use std::ops::{Deref, DerefMut, Range};
use std::process::Stdio;
use std::time::Duration;

pub use pregrant_test_machine::processes::{BACK, Back, client};

pub const GUEST: DomId = DomId(5);
pub const OTHER: DomId = DomId(6);
/// Guests whose frames backs keep account of; others talk to each other through a switch.
pub const LOGGED: [DomId; 2] = [GUEST, OTHER];

pub struct World {
    host: Host,
    /// Reports of backs, over their deaths.
    pub state: Log,
    /// Their reports of the frames of [`GUEST`].
    pub log: Log,
    pub other_log: Log,
    guests: Vec<DomId>,
}

impl Deref for World {
    type Target = Host;
    fn deref(&self) -> &Host {
        &self.host
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Host {
        &mut self.host
    }
}

impl World {
    /// A machine with one vif of [`GUEST`], numbered 0, which outlives its processes.
    pub fn new() -> Self {
        let mut world = Self::empty();
        world.add(DomainSpec { durable: true, ..DomainSpec::guest(GUEST) });
        world
    }

    pub fn empty() -> Self {
        let mut host = Host::start("restart");
        let [state, log, other_log] = [BACK, GUEST, OTHER].map(|of| Log::open(&host.keeper, of));
        host.empty = host.broker.audit();
        Self { host, state, log, other_log, guests: Vec::new() }
    }

    /// A domain and its vif 0.
    pub fn add(&mut self, spec: DomainSpec) {
        self.broker.create_domain(spec).unwrap();
        self.make_vif(spec.domid);
        self.guests.push(spec.domid);
        // It stays until the end.
        self.empty.domains += usize::from(spec.durable);
    }

    /// The toolstack makes vif 0 of a guest, in place of what is there.
    pub fn make_vif(&mut self, guest: DomId) {
        let mac = [0x00, 0x16, 0x3e, 0, guest.0 as u8, 0];
        Vif::new(guest, BACK, 0, mac).create(&mut self.toolstack).unwrap();
    }

    /// Removes the guest's vif, as the toolstack does.
    pub fn remove_vif(&mut self, guest: DomId) {
        toolstack::remove(&mut self.toolstack, &vif(guest)).unwrap();
    }

    /// An attachment of [`GUEST`] with its xenstore connection.
    pub fn guest(&self) -> (Loopback, Client<UnixTransport>) {
        self.attach(GUEST)
    }

    /// An attachment of this domain with its xenstore connection.
    pub fn attach(&self, domid: DomId) -> (Loopback, Client<UnixTransport>) {
        let guest = self.broker.attach(domid).unwrap();
        let xs = client(&guest);
        (guest, xs)
    }

    /// Writes the back's state, as a back that then died.
    pub fn set_state_of_back(&mut self, state: &str) {
        let at = vif(GUEST).back_dir() + "/state";
        self.toolstack.write(&at, state).unwrap();
    }

    /// Starts a back; `crash` names the point at which it must die. It has as many workers as this
    /// process's arguments say.
    pub fn back(&self, ordinary: &str, crash: Option<String>) -> Back {
        self.back_of(ordinary, crash, std::env::var(WORKERS).ok())
    }

    /// Starts a back with this many worker threads; None: it serves queues itself.
    pub fn back_of(&self, ordinary: &str, crash: Option<String>, workers: Option<String>) -> Back {
        for word in [Word::Stage, Word::Frames, Word::PauseUs, Word::Lent] {
            self.state.set(word, 0);
        }
        let mut command = self.child(&[ordinary], crash);
        command.env_remove(WORKERS);
        if let Some(workers) = workers {
            command.env(WORKERS, workers);
        }
        Back::start(command.stdout(Stdio::piped()))
    }

    /// Asks the back's present process what it counted of [`GUEST`]'s frames, TX and RX.
    pub fn counted(&self) -> [Counts; 2] {
        let question = self.state.get(Word::Asked) + 1;
        self.state.set(Word::Asked, question);
        while self.state.get(Word::Answered) != question {
            std::thread::sleep(Duration::from_millis(1));
        }
        [0, 1].map(|dir| self.state.counts(dir))
    }

    /// The vifs are closed at both ends: takes them away, and sees that nothing is left of them.
    pub fn end(mut self, back: Back) {
        for guest in std::mem::take(&mut self.guests) {
            self.remove_vif(guest);
        }
        self.host.end(back);
    }
}

fn vif(guest: DomId) -> DeviceId {
    Vif::new(guest, BACK, 0, [0; 6]).id
}

/// The environment variable for the number of a back's worker threads.
pub const WORKERS: &str = "PREGRANT_TEST_WORKERS";

/// Words that outlive the backs: what came out of their port, what went in.
pub struct Log(Persistent);

#[derive(Clone, Copy, Debug)]
pub enum Word {
    // Of a guest.
    /// Frames that came out damaged.
    Damaged,
    /// Frames that came out after a later one of the same process.
    Reordered,
    /// Frames that came out again.
    Again,
    /// Frames that came out.
    Seen,
    /// Number of the next frame for the guest.
    Next,
    /// No frame for the guest from here on.
    Limit,
    /// Bytes of frames for the guest.
    Size,
    /// Reports of backs about their predecessors: frames that may have come out twice, and frames
    /// that are lost.
    SaidTwice,
    SaidLost,
    /// Bit `q`: the back's present process took frames out of queue `q`.
    Served,
    // Of the back itself.
    /// 0 not there yet, 1 attached, 2 has live queues.
    Stage,
    /// Frames of this process, both ways.
    Frames,
    /// Microseconds from this process' attach to its first frame, 0: none came.
    PauseUs,
    /// Frames for guests that were lost when it ended in good order.
    Lost,
    /// Frames of this process, copied from one guest's pages into another's.
    Lent,
    /// The question, the answer's number, and the answer: what the process holds, and how many vifs
    /// it has.
    Asked,
    Answered,
    Fds,
    EventFds,
    Threads,
    Mappings,
    Vifs,
    /// With the answer: the counts of all queues of [`GUEST`]'s vif, TX and then RX, in the form of
    /// [`Counts`].
    Counted,
}

/// Declares the numbers of a direction once, for their struct, their words and their count.
macro_rules! counts {
    ($($name:ident),*) => {
        /// How frames of one direction travelled, as their back counted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counts {
            $(pub $name: u32),*
        }

        /// Numbers of a direction in [`Word::Counted`].
        pub const COUNTS: usize = [$(stringify!($name)),*].len();

        impl Counts {
            pub fn words(&self) -> [u32; COUNTS] {
                [$(self.$name),*]
            }

            pub fn of(words: [u32; COUNTS]) -> Self {
                let [$($name),*] = words;
                Self { $($name),* }
            }
        }
    };
}

counts!(
    frames,
    granted,
    persistent,
    gref_mapped,
    data_ring,
    foreign,
    guest_copy,
    staged,
    dropped,
    errors,
    maps
);

/// Bytes of a log.
const LOG_BYTES: usize = 1 << 24;
/// Words before those that count each frame.
const HEAD: usize = Word::Counted as usize + 2 * COUNTS;

/// The slot in which a frame is counted. Slots repeat after four million numbers: forget old ones
/// in time.
fn place(seq: u64) -> usize {
    (HEAD + seq as usize % (LOG_BYTES / 4 - HEAD)) * 4
}

impl Log {
    pub fn open(platform: &Loopback, of: DomId) -> Self {
        Self(platform.persist(&format!("test/log{}", of.0), LOG_BYTES).unwrap())
    }

    pub fn get(&self, word: Word) -> u32 {
        self.0.load_u32(word as usize * 4).unwrap()
    }

    pub fn set(&self, word: Word, value: u32) {
        assert!(self.0.store_u32(word as usize * 4, value));
    }

    /// The counts of [`Word::Counted`] for TX (0) or RX (1).
    pub fn counts(&self, dir: usize) -> Counts {
        let at = Word::Counted as usize + dir * COUNTS;
        Counts::of(std::array::from_fn(|k| self.0.load_u32((at + k) * 4).unwrap()))
    }

    pub fn set_counts(&self, dir: usize, counts: Counts) {
        let at = Word::Counted as usize + dir * COUNTS;
        for (k, word) in counts.words().into_iter().enumerate() {
            assert!(self.0.store_u32((at + k) * 4, word));
        }
    }

    pub fn add(&self, word: Word, n: usize) {
        self.set(word, self.get(word) + n as u32);
    }

    /// Number of times frame `seq` came out.
    pub fn times(&self, seq: u64) -> u32 {
        self.0.load_u32(place(seq)).expect("a place in the log")
    }

    pub fn note(&self, seq: u64) {
        let times = self.times(seq);
        self.add(Word::Seen, 1);
        self.add(Word::Again, usize::from(times > 0));
        assert!(self.0.store_u32(place(seq), times + 1));
    }

    /// Forgets frames, so that their numbers can be used again.
    pub fn forget(&self, numbers: Range<u64>) {
        for seq in numbers {
            assert!(self.0.store_u32(place(seq), 0));
        }
    }

    /// For these frames: how many did not arrive, and how many arrived again.
    pub fn account(&self, numbers: Range<u64>) -> (usize, u32) {
        let times: Vec<u32> = numbers.map(|seq| self.times(seq)).collect();
        (times.iter().filter(|t| **t == 0).count(), times.iter().map(|t| t.saturating_sub(1)).sum())
    }
}
