//! xenstored over real sockets: domains, commands of other threads, clients that misbehave, and
//! stale sockets.

use pregrant::DomId;
use pregrant::wire::xs::{Errno, Header, MsgType};
use pregrant::xenstore::{Cause, Client};
use pregrant_host::UnixTransport;
use pregrant_host::listener::ListenError;
use pregrant_loopback::xenstored::{Handle, HandleError, Xenstored, XenstoredError};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::JoinHandle;

/// A directory of its own for each test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("pregrant-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A server in a thread of its own, which gives it back at the end.
fn serve(mut xenstored: Xenstored) -> (Handle, JoinHandle<Xenstored>) {
    let handle = xenstored.handle();
    let thread = std::thread::spawn(move || {
        xenstored.run(None).unwrap();
        xenstored
    });
    (handle, thread)
}

fn connect(handle: &Handle, domid: u16) -> Client<UnixTransport> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    handle.add_connection(theirs.into(), DomId(domid)).unwrap();
    Client::new(UnixTransport::new(OwnedFd::from(ours)).unwrap())
}

#[test]
fn connections_speak_for_their_domain() {
    let (handle, thread) = serve(Xenstored::new().unwrap());
    handle.introduce(DomId(7)).unwrap();
    let (mut dom0, mut guest) = (connect(&handle, 0), connect(&handle, 7));
    assert_eq!(guest.read("domid").unwrap(), b"7");
    assert_eq!(guest.write("/tool/x", "1").unwrap_err().errno(), Some(Errno::Eacces));
    guest.watch("data", "t").unwrap();
    assert_eq!(guest.next_event(None).unwrap().unwrap().path, "data");
    dom0.write("/local/domain/7/data/x", "1").unwrap();
    assert_eq!(guest.next_event(None).unwrap().unwrap().path, "data/x");
    assert_eq!(guest.next_event(Some(std::time::Duration::ZERO)).unwrap(), None);

    // Two transactions that met: the first to end wins, the other is done again and sees it.
    let mut rounds = 0;
    guest
        .transaction(|t| {
            rounds += 1;
            let seen = t.read("data/x")?;
            if rounds == 1 {
                dom0.write("/local/domain/7/data/x", "2")?;
            }
            t.write("data/y", seen)
        })
        .unwrap();
    assert_eq!((rounds, dom0.read("/local/domain/7/data/y").unwrap()), (2, b"2".to_vec()));

    handle.release(DomId(7)).unwrap();
    assert!(matches!(guest.read("domid").unwrap_err().cause, Cause::Connection(_)));
    assert!(matches!(handle.release(DomId(7)), Err(HandleError::Refused(_))));
    drop(dom0);
    handle.stop().unwrap();
    let xenstored = thread.join().unwrap();
    assert_eq!(xenstored.server().usage(DomId(7)), (0, 0, 0));
    drop(xenstored);
    assert_eq!(handle.introduce(DomId(8)), Err(HandleError::Stopped));
}

#[test]
fn a_long_directory_and_a_long_value_arrive_whole() {
    let (handle, thread) = serve(Xenstored::new().unwrap());
    let mut dom0 = connect(&handle, 0);
    let mut names: Vec<_> = (0..700).map(|i| format!("a-rather-long-name-{i}")).collect();
    for name in &names {
        dom0.mkdir(&format!("/many/{name}")).unwrap();
    }
    names.sort();
    assert_eq!(dom0.directory("/many").unwrap(), names);
    assert_eq!(dom0.transaction(|t| t.directory("/many")).unwrap(), names);
    let value = vec![0xa5; 4096 - "/long\0".len()];
    dom0.write("/long", &value).unwrap();
    assert_eq!(dom0.read("/long").unwrap(), value);
    assert_eq!(dom0.write("/long!", &value).unwrap_err().errno(), None, "refused before it is sent");
    let too_long = dom0.write("/long", vec![0; 4096]).unwrap_err();
    assert!(matches!(too_long.cause, Cause::TooLong { len_bytes: 4102 }), "{too_long}");
    handle.stop().unwrap();
    thread.join().unwrap();
}

#[test]
fn a_client_that_does_not_read_disturbs_no_one() {
    let (handle, thread) = serve(Xenstored::new().unwrap());
    handle.introduce(DomId(7)).unwrap();
    let mut dom0 = connect(&handle, 0);
    let (ours, theirs) = UnixStream::pair().unwrap();
    handle.add_connection(theirs.into(), DomId(7)).unwrap();
    // Reads of its home, until neither the server nor the socket takes any more.
    let path = b"/local/domain/7\0";
    let header =
        Header { msg_type: MsgType::Directory.raw(), req_id: 1, tx_id: 0, len_bytes: path.len() as u32 };
    let request = [&header.to_bytes()[..], path].concat();
    ours.set_nonblocking(true).unwrap();
    let mut sent = 0;
    loop {
        match (&ours).write(&request) {
            Ok(n) if n == request.len() => sent += 1,
            _ => break,
        }
        // The other domain is served all the while.
        if sent % 1000 == 0 {
            dom0.write("/tool/x", format!("{sent}")).unwrap();
        }
    }
    dom0.write("/tool/x", "done").unwrap();
    // Once it reads, it gets an answer to each.
    ours.set_nonblocking(false).unwrap();
    let reply_bytes = Header::SIZE + b"data\0domid\0error\0".len();
    let mut answers = vec![0; sent * reply_bytes];
    (&ours).read_exact(&mut answers).unwrap();
    assert!(answers.chunks(reply_bytes).all(|a| a.ends_with(b"data\0domid\0error\0")));
    drop(ours);
    handle.stop().unwrap();
    thread.join().unwrap();
}

#[test]
fn garbage_closes_that_connection_only() {
    let (handle, thread) = serve(Xenstored::new().unwrap());
    let mut dom0 = connect(&handle, 0);
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    handle.add_connection(theirs.into(), DomId(7)).unwrap();
    ours.write_all(&[0xff; 64]).unwrap();
    // Closed with bytes unread is a reset; either way nothing comes.
    let mut rest = vec![];
    assert!(matches!(ours.read_to_end(&mut rest), Ok(0) | Err(_)) && rest.is_empty());
    dom0.write("/tool/x", "1").unwrap();
    handle.stop().unwrap();
    assert_eq!(thread.join().unwrap().connections(), 1);
}

#[test]
fn xsa_157_468_the_socket_is_domain_0s_and_goes_with_its_server() {
    let scratch = Scratch::new("socket");
    let path = scratch.path("xs");
    let mut xenstored = Xenstored::new().unwrap();
    xenstored.listen_unix(&path).unwrap();
    let mode = rustix::fs::stat(&path).unwrap().st_mode & 0o777;
    assert_eq!(mode, 0o600);
    let error = Xenstored::new().unwrap().listen_unix(&path).unwrap_err();
    assert!(
        matches!(error, XenstoredError::Listen(ListenError::InUse { .. }))
            && error.to_string().contains("stop it"),
        "{error}"
    );

    let (stop, stopper) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || xenstored.run(Some(stop.as_fd())));
    let mut dom0 = Client::new(UnixTransport::connect(&path).unwrap());
    dom0.introduce(DomId(3), 0, pregrant::EvtchnPort(0)).unwrap();
    assert!(dom0.is_domain_introduced(DomId(3)).unwrap());
    assert_eq!(dom0.get_domain_path(DomId(3)).unwrap(), "/local/domain/3");
    drop(stopper);
    thread.join().unwrap().unwrap();
    assert!(!path.exists());
    assert!(UnixTransport::connect(&path).unwrap_err().to_string().contains("is xenstored running?"));
}

#[test]
fn what_is_in_the_way_is_replaced_only_if_it_is_a_dead_servers() {
    let scratch = Scratch::new("stale");
    let (dead, file, missing) = (scratch.path("dead"), scratch.path("file"), scratch.path("no/such"));
    drop(UnixListener::bind(&dead).unwrap());
    assert!(dead.exists());
    let mut xenstored = Xenstored::new().unwrap();
    xenstored.listen_unix(&dead).unwrap();
    std::fs::write(&file, "precious").unwrap();
    assert!(matches!(
        xenstored.listen_unix(&file),
        Err(XenstoredError::Listen(ListenError::NotASocket { .. }))
    ));
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    let error = xenstored.listen_unix(&missing).unwrap_err().to_string();
    assert!(error.contains("make the directory first"), "{error}");
    let long = scratch.path(&"x".repeat(200));
    assert!(matches!(
        xenstored.listen_unix(&long),
        Err(XenstoredError::Listen(ListenError::PathTooLong { .. }))
    ));
}
