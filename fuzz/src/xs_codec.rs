//! Bytes of the xenstore protocol, both ways: what a client may send, what a server may answer, cut
//! anywhere.
//!
//! However a stream is cut, the same messages come of it, and what is kept is no more than what
//! came. A client whose server answers nonsense gets errors: it neither panics nor waits for ever,
//! and remembers no more than it got.

use crate::tape::Tape;
use pregrant::DomId;
use pregrant::wire::xs::{Errno, Header, MsgType, PAYLOAD_MAX};
use pregrant::xenstore::codec::{self, Message, Parser};
use pregrant::xenstore::{Client, Permission, Transport, path};
use std::time::Duration;

/// Feeds the tape to the parser, to the payloads' readers and to a client.
pub fn xs_codec(data: &[u8]) {
    let mut tape = Tape::new(data);
    let cut = 1 + usize::from(tape.u8());
    let calls = tape.string();
    let stream = tape.rest();
    let (messages, lost) = parsed(stream, stream.len().max(1));
    assert_eq!(parsed(stream, cut), (messages.clone(), lost), "cut every {cut} bytes");
    let (whole, too_long) = by_hand(stream);
    assert_eq!((messages.len(), lost), (whole, too_long), "messages in the stream");
    for message in &messages {
        encoded(message);
        payload(&message.payload);
    }
    payload(stream);
    client(calls, stream, cut);
}

/// The messages of a stream that is received in parts of `cut` bytes, and whether the stream became
/// invalid.
fn parsed(stream: &[u8], cut: usize) -> (Vec<Message>, bool) {
    let (mut parser, mut messages) = (Parser::new(), Vec::new());
    for piece in stream.chunks(cut) {
        parser.push(piece);
        loop {
            match parser.next() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(_) => {
                    assert!(parser.next().is_err(), "a lost stream stays lost");
                    return (messages, true);
                }
            }
        }
        assert!(parser.buffered_bytes() < Header::SIZE + PAYLOAD_MAX, "a whole message is kept back");
    }
    (messages, false)
}

/// The number of whole messages in a stream, and whether one is too long, computed from the last
/// word of the headers alone.
fn by_hand(mut stream: &[u8]) -> (usize, bool) {
    let mut messages = 0;
    while let Some(head) = stream.get(..16) {
        let len = u32::from_le_bytes([head[12], head[13], head[14], head[15]]) as usize;
        if len > 4096 {
            return (messages, true);
        }
        let Some(rest) = stream.get(16 + len..) else { break };
        (messages, stream) = (messages + 1, rest);
    }
    (messages, false)
}

/// A message that was decoded and encoded again is unchanged.
fn encoded(message: &Message) {
    let Header { msg_type, req_id, tx_id, .. } = message.header;
    let mut bytes = Vec::new();
    codec::encode(&mut bytes, msg_type, req_id, tx_id, &[&message.payload]);
    let (again, _) = parsed(&bytes, bytes.len());
    assert_eq!(again, std::slice::from_ref(message));
    let known = MsgType::from_raw(msg_type);
    assert!(known.is_none_or(|kind| kind.raw() == msg_type));
}

/// Calls each parser of payloads with the same bytes.
fn payload(bytes: &[u8]) {
    let strings: Option<Vec<&[u8]>> = codec::strings(bytes).map(Iterator::collect);
    assert_eq!(strings.is_some(), bytes.ends_with(b"\0"));
    let [one, two, three] = [
        codec::exactly::<1>(bytes).is_some(),
        codec::exactly::<2>(bytes).is_some(),
        codec::exactly::<3>(bytes).is_some(),
    ];
    assert!(u8::from(one) + u8::from(two) + u8::from(three) <= 1);
    if let Some(strings) = strings {
        let joined: Vec<u8> = strings.iter().flat_map(|s| s.iter().copied().chain([0])).collect();
        assert_eq!((joined.as_slice(), one), (bytes, strings.len() == 1));
    }
    if let Some((head, rest)) = codec::string_and_rest(bytes) {
        assert_eq!(head.len() + 1 + rest.len(), bytes.len());
    }
    if let Some(n) = codec::decimal(bytes) {
        let digits = String::from_utf8_lossy(bytes);
        let digits = digits.trim_start_matches('0');
        assert_eq!(n.to_string(), if digits.is_empty() { "0" } else { digits });
    }
    if let Some(list) = Permission::parse_list(bytes) {
        assert_eq!(Permission::parse_list(&Permission::list_to_bytes(&list)), Some(list));
    }
    if let Some(errno) = Errno::from_payload(bytes) {
        assert_eq!(Errno::from_payload(errno.name().as_bytes()), Some(errno));
    }
    match path::check(bytes) {
        Ok(at) => {
            let whole = path::resolve(at, DomId(5));
            assert!(path::is_absolute(&whole) || at.starts_with('@'));
            assert!(
                path::self_and_ancestors(&whole)
                    .all(|p| path::check(p.as_bytes()).is_ok() || at.starts_with('@'))
            );
        }
        Err(e) => assert!(e.to_string().len() < 200),
    }
}

/// A server that sends the tape, whatever it is asked.
struct Tapes<'a> {
    left: &'a [u8],
    cut: usize,
    sent: usize,
}

impl Transport for Tapes<'_> {
    type Error = &'static str;
    fn send(&mut self, bytes: &[u8]) -> Result<(), Self::Error> {
        let (messages, lost) = parsed(bytes, bytes.len());
        assert!(messages.len() == 1 && !lost, "a request is one whole message");
        self.sent += 1;
        Ok(())
    }
    fn recv(&mut self, buf: &mut [u8], wait: Option<Duration>) -> Result<usize, Self::Error> {
        let n = self.cut.min(buf.len()).min(self.left.len());
        let (now, later) = self.left.split_at(n);
        buf[..n].copy_from_slice(now);
        self.left = later;
        match (n, wait) {
            (0, None) => Err("the end of the tape"),
            (n, _) => Ok(n),
        }
    }
}

fn client(calls: &[u8], stream: &[u8], cut: usize) {
    let mut xs = Client::new(Tapes { left: stream, cut, sent: 0 });
    for call in calls {
        let at = "/local/domain/5/x";
        let failed = match call % 14 {
            0 => xs.read(at).err(),
            1 => xs.directory(at).err(),
            2 => xs.get_perms(at).err(),
            3 => xs.write(at, [*call; 20]).err(),
            4 => xs.watch(at, "token").err(),
            5 => xs.unwatch(at, "token").err(),
            6 => xs.next_event(Some(Duration::ZERO)).err(),
            7 => xs.next_event_where(Some(Duration::ZERO), |e| e.token == "other").err(),
            8 => xs.transaction(|t| t.write(at, "1").and_then(|()| t.directory(at))).err(),
            9 => xs.get_domain_path(DomId(5)).err(),
            10 => xs.is_domain_introduced(DomId(5)).err(),
            11 => xs.reset_watches().err(),
            12 => xs.set_perms(at, &[Permission::new(pregrant::xenstore::Access::Read, DomId(5))]).err(),
            _ => xs.rm(at).err(),
        };
        if let Some(e) = failed {
            let text = e.to_string();
            assert!(text.len() < 400 && !text.contains(char::is_control), "{text:?}");
        }
    }
    assert!(xs.transport().sent <= 2000 + 2 * calls.len(), "requests without end");
}
