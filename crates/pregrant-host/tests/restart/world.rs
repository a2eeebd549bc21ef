//! A machine with broker, xenstored and toolstack in this process, and backs as child processes that may be killed.

use pregrant::DomId;
use pregrant::shm::SharedBytes;
use pregrant::xenbus::toolstack::{self, Vif};
use pregrant::xenstore::Client;
use pregrant_host::loopback::{Audit, Broker, DomainSpec, Hooks, Loopback, Persistent};
use pregrant_host::xenstored::{Handle, UnixTransport, Xenstored};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

pub const BACK: DomId = DomId(0);
pub const GUEST: DomId = DomId(5);

pub struct World {
    socket: PathBuf,
    pub broker: Broker,
    store: Handle,
    thread: Option<JoinHandle<()>>,
    toolstack: Client<UnixTransport>,
    /// What backs tell, over their deaths.
    pub log: Log,
    keeper: Loopback,
    empty: Audit,
}

impl World {
    /// With one vif, numbered 0.
    pub fn new() -> Self {
        let socket = std::env::temp_dir().join(format!("pregrant-restart-{}.sock", std::process::id()));
        let mut server = Xenstored::new().unwrap();
        server.introduce(BACK).ok(); // may be known from the start
        let store = server.handle();
        let thread = std::thread::spawn(move || server.run(None).unwrap());
        let (connect, create, destroy) = (store.clone(), store.clone(), store.clone());
        let hooks = Hooks {
            store: Some(Box::new(move |domid, fd| connect.add_connection(fd, domid).unwrap())),
            created: Box::new(move |domid| create.introduce(domid).unwrap_or(())),
            destroyed: Box::new(move |domid| destroy.release(domid).unwrap_or(())),
        };
        let broker = Broker::start(Some(&socket), hooks).unwrap();
        broker.create_domain(DomainSpec::driver(BACK)).unwrap();
        broker.create_domain(DomainSpec { durable: true, ..DomainSpec::guest(GUEST) }).unwrap();
        let keeper = broker.attach(BACK).unwrap();
        let mut toolstack = client(&keeper);
        Vif::new(GUEST, BACK, 0, [0x00, 0x16, 0x3e, 0, 5, 0]).create(&mut toolstack).unwrap();
        let log = Log::open(&keeper);
        let empty = broker.audit();
        Self { socket, broker, store, thread: Some(thread), toolstack, log, keeper, empty }
    }

    /// A guest's attachment with its xenstore connection.
    pub fn guest(&self) -> (Loopback, Client<UnixTransport>) {
        let guest = self.broker.attach(GUEST).unwrap();
        let xs = client(&guest);
        (guest, xs)
    }

    /// A back; `crash` names where it is to die.
    pub fn back(&self, ordinary: &str, crash: Option<String>) -> Back {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["child", ordinary]).arg(&self.socket).env_remove("PREGRANT_CRASH");
        if let Some(crash) = crash {
            command.env("PREGRANT_CRASH", crash).stderr(Stdio::null());
        }
        Back { child: command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap() }
    }

    /// The vif is closed at both ends: takes it away, and sees that nothing is left of it.
    pub fn end(mut self, mut back: Back) {
        let id = Vif::new(GUEST, BACK, 0, [0; 6]).id;
        toolstack::remove(&mut self.toolstack, &id).unwrap();
        let mut rounds = 0;
        while self.broker.audit().regions != self.empty.regions {
            rounds += 1;
            assert!(rounds < 5000, "the back did not forget the vif: {:?}", self.broker.audit());
            std::thread::sleep(Duration::from_millis(2));
        }
        back.stop();
        while self.broker.audit() != self.empty {
            rounds += 1;
            assert!(rounds < 5000, "left: {:?}, wanted: {:?}", self.broker.audit(), self.empty);
            std::thread::sleep(Duration::from_millis(2));
        }
        drop((self.toolstack, self.log, self.keeper));
        drop(self.broker);
        self.store.stop().unwrap();
        self.thread.take().unwrap().join().unwrap();
    }
}

pub fn client(platform: &Loopback) -> Client<UnixTransport> {
    Client::new(UnixTransport::new(platform.take_store_fd().expect("the broker has a xenstore")).unwrap())
}

pub fn attach(path: &Path) -> Loopback {
    Loopback::attach(path, BACK).unwrap()
}

/// A back's process.
pub struct Back {
    child: Child,
}

impl Back {
    /// Killed without notice.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Whether it died by itself.
    pub fn is_dead(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until its queues are live.
    pub fn is_live(&mut self) {
        let mut line = String::new();
        BufReader::new(self.child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "live\n");
    }

    /// Stops in good order: it leaves its vifs connected.
    pub fn stop(&mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// Words that outlive the backs: what came out of their port, what went in.
pub struct Log(Persistent);

/// The log's first words.
#[derive(Clone, Copy)]
pub enum Word {
    /// Frames that came out damaged.
    Damaged,
    /// Frames that came out after a later one of the same process.
    Reordered,
    /// Number of the next frame for the guest.
    Next,
    /// No frame for the guest from here on.
    Limit,
    /// Octets of frames for the guest.
    Size,
    /// Microseconds from the last process' attach to its first frame, 0: none came.
    PauseUs,
}

impl Log {
    pub fn open(platform: &Loopback) -> Self {
        Self(platform.persist("test/log", 1 << 24).unwrap())
    }

    pub fn get(&self, word: Word) -> u32 {
        self.0.load_u32(word as usize * 4).unwrap()
    }

    pub fn set(&self, word: Word, value: u32) {
        assert!(self.0.store_u32(word as usize * 4, value));
    }

    pub fn add(&self, word: Word) {
        self.set(word, self.get(word) + 1);
    }

    /// How often frame `seq` came out.
    pub fn times(&self, seq: u64) -> u32 {
        self.0.load_u32((16 + seq as usize) * 4).expect("the log is long enough")
    }

    pub fn note(&self, seq: u64) {
        assert!(self.0.store_u32((16 + seq as usize) * 4, self.times(seq) + 1));
    }

    /// Of frames 0 to `sent`: how many did not come out, and how many came out again.
    pub fn account(&self, sent: u64) -> (usize, u32) {
        let times: Vec<u32> = (0..sent).map(|seq| self.times(seq)).collect();
        (times.iter().filter(|t| **t == 0).count(), times.iter().map(|t| t.saturating_sub(1)).sum())
    }
}
