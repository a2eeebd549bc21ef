//! A client that watches and never reads, on a real socket: what the server keeps for it, counted
//! in bytes, and that the others are served all the while. The server runs in the test's own
//! thread, whose allocations are counted.

use pregrant::DomId;
use pregrant::wire::xs::{Header, MsgType};
use pregrant::xenstore::codec;
use pregrant_loopback::xenstored::Xenstored;
use pregrant_testkit::counting::{Counting, live};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

#[global_allocator]
static COUNTING: Counting = Counting;

const EVENTS: usize = 100_000;

fn connect(xenstored: &mut Xenstored, domid: u16) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    xenstored.add_connection(theirs.into(), DomId(domid)).unwrap();
    ours
}

fn ask(xenstored: &mut Xenstored, socket: &mut UnixStream, kind: MsgType, payload: &[u8]) {
    let mut bytes = vec![];
    codec::encode(&mut bytes, kind.raw(), 1, 0, &[payload]);
    socket.write_all(&bytes).unwrap();
    xenstored.poll_once(Some(Duration::ZERO)).unwrap();
    let mut reply = [0; Header::SIZE + 3];
    socket.read_exact(&mut reply).unwrap();
    assert!(reply.ends_with(b"OK\0"), "{kind} was answered by {reply:?}");
}

#[test]
fn a_hundred_thousand_events_for_a_socket_that_no_one_reads() {
    let mut xenstored = Xenstored::new().unwrap();
    xenstored.introduce(DomId(7)).unwrap();
    let mut dom0 = connect(&mut xenstored, 0);
    let mut change = |xenstored: &mut Xenstored, i: usize| {
        let path = format!("/local/domain/7/data/{i}\0").into_bytes();
        ask(xenstored, &mut dom0, MsgType::Mkdir, &path);
        ask(xenstored, &mut dom0, MsgType::Rm, &path);
    };
    (0..10).for_each(|i| change(&mut xenstored, i));
    let before = live();

    let mut guest = connect(&mut xenstored, 7);
    ask(&mut xenstored, &mut guest, MsgType::Watch, b"data\0t\0");
    // And a request that stops halfway.
    guest.write_all(&Header { msg_type: 2, len_bytes: 4000, ..Header::default() }.to_bytes()).unwrap();
    guest.write_all(&[b'x'; 3999]).unwrap();
    // Each of these waits for domain 0's reply: nothing waits for the guest.
    (0..EVENTS).for_each(|i| change(&mut xenstored, i));
    let kept = live() - before;
    println!("{kept} bytes kept for a client that reads nothing of {} events", 2 * EVENTS);
    // Bytes given to the socket and not taken, bytes that wait in the server, and the received part
    // of the request.
    assert!(kept < 512 * 1024, "{kept} bytes are kept");

    drop(guest);
    xenstored.poll_once(Some(Duration::ZERO)).unwrap();
    assert_eq!(xenstored.connections(), 1);
    assert!(live() - before < 4096, "{} bytes stay behind", live() - before);
}
