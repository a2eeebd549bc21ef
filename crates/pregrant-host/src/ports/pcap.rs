//! A port that writes the frames passing another port to a capture file (classic pcap, Ethernet,
//! microseconds).
//!
//! ```text
//!   queue 0 --Pcap--> its port        each burst, once it has passed --> Capture --> the vif's file
//!   queue 1 --Pcap--> its port        -----------------------------------^
//! ```
//! All queues and both directions share one file, in the order in which frames pass. A frame is
//! written as it is: a blank checksum shows as wrong in a viewer, as in captures on any sending
//! host with checksum offload. There is one time stamp per burst.
//!
//! A capture ends if its file cannot be written or has reached its size limit, whose last frame is
//! complete; the port's traffic continues. The owner of the [`Capture`] asks how it
//! [ended](Capture::ended), to log that.
//!
//! What a guest may do: make the file as long as its limit allows.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use pregrant::port::{
    Arena, Burst, DropCounts, FrameDesc, FramePort, MAX_FRAME, Offloads, PortOwner, Room, Steering,
};

/// A capture length that is longer than any frame.
pub const WHOLE_FRAMES: u32 = MAX_FRAME as u32;

const MAGIC_MICROSECONDS: u32 = 0xA1B2_C3D4;
const LINKTYPE_ETHERNET: u32 = 1;
/// Largest number of bytes buffered before they are written.
const BUFFER: usize = 256 * 1024;
const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;

/// The reason why a capture ended.
#[derive(Debug)]
pub enum End {
    /// Writing the file failed.
    Failed(io::Error),
    /// The next frame would exceed this size in bytes.
    Limit(u64),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(e) => e.fmt(f),
            Self::Limit(bytes) => write!(f, "the file has reached its limit of {bytes} bytes"),
        }
    }
}

/// A capture file, shared by all ports of a vif. Clones share the file.
#[derive(Debug)]
pub struct Capture<W: Write>(Arc<Mutex<Shared<W>>>);

impl<W: Write> Clone for Capture<W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
struct Shared<W: Write> {
    /// The file that is written; None once the capture has ended.
    file: Option<io::BufWriter<W>>,
    ended: Option<End>,
    snap_len: u32,
    /// The size limit of the file; `size` is its size with the bytes that are buffered.
    limit: u64,
    len: u64,
    written: u64,
}

impl<W: Write> Capture<W> {
    /// Starts a capture to `file`, of at most `snap_len` bytes of each frame, by writing the file's
    /// header. It ends before the file exceeds `limit` bytes.
    ///
    /// # Errors
    ///
    /// The header cannot be written.
    pub fn new(file: W, snap_len: u32, limit: u64) -> io::Result<Self> {
        let mut file = io::BufWriter::with_capacity(BUFFER, file);
        let mut header = [0u8; FILE_HEADER];
        header[..4].copy_from_slice(&MAGIC_MICROSECONDS.to_le_bytes());
        header[4..6].copy_from_slice(&2u16.to_le_bytes());
        header[6..8].copy_from_slice(&4u16.to_le_bytes());
        header[16..20].copy_from_slice(&snap_len.to_le_bytes());
        header[20..].copy_from_slice(&LINKTYPE_ETHERNET.to_le_bytes());
        let started = file.write_all(&header).and_then(|()| file.flush());
        if let Err(e) = started {
            drop(file.into_parts()); // not flushed again
            return Err(e);
        }
        let len = FILE_HEADER as u64;
        let shared = Shared { file: Some(file), ended: None, snap_len, limit, len, written: 0 };
        Ok(Self(Arc::new(Mutex::new(shared))))
    }

    /// Returns the number of frames captured so far.
    pub fn written(&self) -> u64 {
        self.lock().written
    }

    /// Writes the buffer to the file.
    pub fn flush(&self) {
        self.lock().attempt(|file| file.flush().map(|()| None));
    }

    /// Returns why the capture has ended, once, if it has ended.
    pub fn ended(&self) -> Option<End> {
        self.lock().ended.take()
    }

    fn lock(&self) -> MutexGuard<'_, Shared<W>> {
        // Any state that a panic could leave behind is valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn capture(&self, bytes: &[u8], frames: &[FrameDesc]) {
        if frames.is_empty() {
            return;
        }
        let mut shared = self.lock();
        let (snap_len, limit) = (shared.snap_len as usize, shared.limit);
        let (mut len, mut written) = (shared.len, 0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        shared.attempt(|file| {
            for (frame, _) in Burst::of(bytes, frames).iter() {
                let kept = frame.len().min(snap_len);
                let longer = len + (RECORD_HEADER + kept) as u64;
                if longer > limit {
                    file.flush()?;
                    return Ok(Some(End::Limit(limit)));
                }
                let mut record = [0u8; RECORD_HEADER];
                record[..4].copy_from_slice(&(now.as_secs() as u32).to_le_bytes());
                record[4..8].copy_from_slice(&now.subsec_micros().to_le_bytes());
                record[8..12].copy_from_slice(&(kept as u32).to_le_bytes());
                record[12..].copy_from_slice(&(frame.len() as u32).to_le_bytes());
                file.write_all(&record)?;
                file.write_all(&frame[..kept])?;
                (len, written) = (longer, written + 1);
            }
            Ok(None)
        });
        shared.len = len;
        shared.written += written;
    }
}

impl<W: Write> Shared<W> {
    /// Writes to the file; a failure ends the capture.
    fn attempt(&mut self, what: impl FnOnce(&mut io::BufWriter<W>) -> io::Result<Option<End>>) {
        if let Some(file) = &mut self.file
            && let Some(end) = what(file).unwrap_or_else(|e| Some(End::Failed(e)))
        {
            self.ended = Some(end);
            // Drop the buffer without flushing it again, which would fail again.
            drop(self.file.take().map(io::BufWriter::into_parts));
        }
    }
}

/// A port that also writes its frames to a capture.
pub struct Pcap<W: Write> {
    inner: Box<dyn FramePort>,
    capture: Capture<W>,
}

impl<W: Write + Send> Pcap<W> {
    /// Captures the frames that pass `inner`.
    pub fn new(inner: Box<dyn FramePort>, capture: &Capture<W>) -> Self {
        Self { inner, capture: capture.clone() }
    }
}

impl<W: Write + Send> FramePort for Pcap<W> {
    fn caps(&self) -> Offloads {
        self.inner.caps()
    }

    fn room(&mut self) -> Room {
        self.inner.room()
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        let taken = self.inner.tx_burst(frames);
        self.capture.capture(frames.bytes, &frames.frames[..taken.min(frames.frames.len())]);
        taken
    }

    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let before = into.len();
        let n = self.inner.rx_burst(into);
        into.make_private(0);
        let burst = into.burst().skip(before);
        self.capture.capture(burst.bytes, burst.frames);
        n
    }

    fn drop_counts(&self) -> Option<Arc<dyn DropCounts>> {
        self.inner.drop_counts()
    }

    fn held(&self) -> usize {
        self.inner.held()
    }

    fn steer(&mut self, by: Option<Arc<dyn Steering>>) {
        self.inner.steer(by);
    }

    fn became_readable(&mut self) {
        self.inner.became_readable();
    }

    fn owned_by(&mut self, owner: &PortOwner) {
        self.inner.owned_by(owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::generator::Generator;
    use crate::ports::sequence::{self, Head};
    use pregrant::port::Offload;
    use std::sync::Mutex;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn le32(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    /// Parses a capture file: the captured bytes and the original length of each frame.
    fn records(file: &[u8]) -> Vec<(Vec<u8>, u32)> {
        let mut at = 24;
        let mut out = Vec::new();
        while at < file.len() {
            let kept = le32(file, at + 8) as usize;
            assert!(le32(file, at + 4) < 1_000_000);
            out.push((file[at + 16..at + 16 + kept].to_vec(), le32(file, at + 12)));
            at += 16 + kept;
        }
        out
    }

    #[test]
    fn both_directions_are_written_as_they_pass() {
        let file = Shared::default();
        let capture = Capture::new(file.clone(), 48, u64::MAX).unwrap();
        assert_eq!(file.0.lock().unwrap().len(), 24, "a viewer may open it from the beginning");
        let mut port = Pcap::new(Box::new(Generator::new(Head::default(), 100)), &capture);
        let mut arena = Arena::new();
        assert!(arena.push(&[0x55; 60], Offload::default()));
        assert_eq!(port.tx_burst(&arena.burst()), 1);
        // appends: the frame that is there already is not written again
        let n = port.rx_burst(&mut arena);
        assert_eq!(capture.written(), 1 + n as u64);
        // A port of another queue.
        let mut other = Pcap::new(Box::new(Generator::new(Head::default(), 100)), &capture);
        arena.clear();
        assert!(arena.push(&[0x66; 60], Offload::default()));
        assert_eq!(other.tx_burst(&arena.burst()), 1);
        capture.flush();
        assert!(capture.ended().is_none());

        let bytes = file.0.lock().unwrap().clone();
        assert_eq!(&bytes[..8], [0xD4, 0xC3, 0xB2, 0xA1, 2, 0, 4, 0]);
        assert_eq!((le32(&bytes, 16), le32(&bytes, 20)), (48, 1));
        let records = records(&bytes);
        assert_eq!(records[0], (vec![0x55; 48], 60));
        assert_eq!(records.len(), 2 + n);
        assert_eq!(records[1 + n], (vec![0x66; 48], 60));
        let mut frame = vec![0; 100];
        for (seq, record) in records[1..=n].iter().enumerate() {
            sequence::fill(&mut frame, seq as u64);
            assert_eq!(*record, (frame[..48].to_vec(), 100));
        }
    }

    /// A file system that is full after this many bytes.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let n = bytes.len().min(self.0);
            self.0 -= n;
            if n == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(n) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_ends_the_capture_and_not_the_traffic() {
        let capture = Capture::new(Full(300_000), WHOLE_FRAMES, u64::MAX).unwrap();
        let mut port = Pcap::new(Box::new(Generator::new(Head::default(), 1500)), &capture);
        let mut arena = Arena::new();
        let (mut frames, mut failures) = (0, 0);
        for _ in 0..100 {
            arena.clear();
            frames += port.rx_burst(&mut arena) as u64;
            capture.flush();
            match capture.ended() {
                None => {}
                Some(End::Failed(e)) if e.kind() == io::ErrorKind::StorageFull => failures += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((frames, failures), (6400, 1));
        assert!(capture.written() < frames);
        assert!(capture.lock().file.is_none());
        let started = Capture::new(Full(23), WHOLE_FRAMES, u64::MAX).map(|_| ());
        assert_eq!(started.map_err(|e| e.kind()), Err(io::ErrorKind::StorageFull), "at once");
    }
    /// At the limit the file ends with a complete frame, and the traffic continues.
    #[test]
    fn a_capture_ends_at_its_limit() {
        // Room for two frames of 100 bytes and most of a third.
        let (file, limit) = (Shared::default(), 24 + 3 * 116 - 1);
        let capture = Capture::new(file.clone(), WHOLE_FRAMES, limit).unwrap();
        let mut port = Pcap::new(Box::new(Generator::new(Head::default(), 100)), &capture);
        let mut arena = Arena::new();
        let mut ends = Vec::new();
        for _ in 0..3 {
            arena.clear();
            assert_eq!(port.rx_burst(&mut arena), 64);
            capture.flush();
            ends.extend(capture.ended().map(|end| end.to_string()));
        }
        assert_eq!(ends, [format!("the file has reached its limit of {limit} bytes")], "once");
        assert_eq!((records(&file.0.lock().unwrap()).len(), capture.written()), (2, 2));
        assert!(capture.lock().file.is_none(), "its descriptor and its buffer are free");
    }
}
