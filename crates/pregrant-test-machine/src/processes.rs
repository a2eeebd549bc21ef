//! A machine with broker, xenstored and toolstack in this process, and backs as child processes
//! that may be killed.
//!
//! ```text
//!   test's process: toolstack, keeper of domain 0 ---- threads: broker, xenstored
//!   children: backs, whose stdin is their end in good order
//! ```

use pregrant::DomId;
use pregrant::xenstore::Client;
use pregrant_host::UnixTransport;
use pregrant_host::drivers::wait::UNBOUNDED;
use pregrant_loopback::xenstored::{Handle, Xenstored};
use pregrant_loopback::{Audit, Broker, DomainSpec, Hooks, Loopback};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub const BACK: DomId = DomId(0);

pub struct Host {
    pub socket: PathBuf,
    pub broker: Arc<Broker>,
    store: Handle,
    thread: JoinHandle<()>,
    pub toolstack: Client<UnixTransport>,
    /// An attachment that keeps the driver domain alive when a back's process ends.
    pub keeper: Loopback,
    /// The broker's counts while there are no guests and no back.
    pub empty: Audit,
}

impl Host {
    /// Starts a machine with the driver domain; `name` is the name of the broker's socket.
    pub fn start(name: &str) -> Self {
        let socket = std::env::temp_dir().join(format!("pregrant-{name}-{}.sock", std::process::id()));
        let mut server = Xenstored::new().unwrap();
        server.introduce(BACK).ok(); // may be known from the start
        let store = server.handle();
        let thread = std::thread::spawn(move || server.run(None).unwrap());
        let broker = Broker::start(Some(&socket), Hooks::with_store(&store)).unwrap();
        broker.create_domain(DomainSpec::driver(BACK)).unwrap();
        let keeper = broker.attach(BACK).unwrap();
        let toolstack = client(&keeper);
        let empty = broker.audit();
        Self { socket, broker: Arc::new(broker), store, thread, toolstack, keeper, empty }
    }

    /// Returns the command that runs this test program as a [`Back`], in a child process with these
    /// arguments. `crash` names the point at which the process must die.
    pub fn child(&self, args: &[&str], crash: Option<String>) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("child").arg(&self.socket).args(args);
        command.env(UNBOUNDED, "unbounded").env_remove("PREGRANT_CRASH");
        if let Some(crash) = crash {
            command.env("PREGRANT_CRASH", crash).stderr(Stdio::null());
        }
        command
    }

    /// Called when all guests are gone or have closed: checks that the back keeps nothing of them,
    /// stops the back, and checks that nothing is left.
    pub fn end(self, mut back: Back) {
        let audit = |what: &str, same: &dyn Fn(&Audit) -> bool| {
            let mut rounds = 0;
            while !same(&self.broker.audit()) {
                rounds += 1;
                assert!(rounds < 20_000, "{what}: left {:?}, wanted {:?}", self.broker.audit(), self.empty);
                std::thread::sleep(Duration::from_millis(2));
            }
        };
        audit("the back keeps something", &|now| now.regions == self.empty.regions);
        back.stop();
        audit("something is left", &|now| *now == self.empty);
        drop((self.toolstack, self.keeper, self.broker));
        self.store.stop().unwrap();
        self.thread.join().unwrap();
    }
}

/// Creates a xenstore client over the connection of an attachment.
pub fn client(platform: &Loopback) -> Client<UnixTransport> {
    Client::new(UnixTransport::new(platform.take_store_fd().expect("the broker has a xenstore")).unwrap())
}

/// A back's process, which is killed on drop.
pub struct Back(Child);

impl Back {
    pub fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::piped()).spawn().unwrap())
    }

    /// Kills the process by SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// True if the process died by itself.
    pub fn is_dead(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    /// Waits until the back's queues are live, which it reports on its standard output.
    pub fn is_live(&mut self) {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "live\n");
    }

    /// Stops the back in good order: its devices stay connected for a successor.
    pub fn stop(&mut self) {
        self.begin_to_detach();
        assert!(self.ended_well());
    }

    /// Like [`stop`](Self::stop), without waiting for the end of the process.
    pub fn begin_to_detach(&mut self) {
        drop(self.0.stdin.take());
    }

    /// Makes the back close its devices and end, without waiting for that.
    pub fn begin_to_close(&mut self) {
        self.0.stdin.take().unwrap().write_all(b"close").unwrap();
    }

    /// Waits until the process has ended. Returns true if it ended with success.
    pub fn ended_well(&mut self) -> bool {
        self.0.wait().unwrap().success()
    }
}

impl Drop for Back {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
