//! A port that writes what passes another port to a capture file (classic pcap, Ethernet, microseconds).
//!
//! Both directions go into one file, in the order in which they passed. The frame is written as it is: one whose
//! checksum is left blank shows as wrong in a viewer, as captures on a sending host do. One time stamp per burst.
//!
//! A file that cannot be written ends the capture with one line in the log; the frames go on.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use pregrant::port::{Arena, Burst, FrameDesc, FramePort, MAX_FRAME, Offloads, PortDrop, Steering};

/// The whole of any frame.
pub const WHOLE_FRAMES: u32 = MAX_FRAME as u32;

const MAGIC_MICROSECONDS: u32 = 0xA1B2_C3D4;
const LINKTYPE_ETHERNET: u32 = 1;

/// A port, captured.
#[derive(Debug)]
pub struct Pcap<P, W: Write> {
    inner: P,
    file: Option<io::BufWriter<W>>,
    snap_len: u32,
    written: u64,
}

impl<P: FramePort, W: Write + Send> Pcap<P, W> {
    /// Captures `inner` into `file`, at most `snap_len` octets of each frame. Writes the file's header.
    pub fn new(inner: P, file: W, snap_len: u32) -> io::Result<Self> {
        let mut file = io::BufWriter::with_capacity(256 * 1024, file);
        let mut header = [0u8; 24];
        header[..4].copy_from_slice(&MAGIC_MICROSECONDS.to_le_bytes());
        header[4..6].copy_from_slice(&2u16.to_le_bytes());
        header[6..8].copy_from_slice(&4u16.to_le_bytes());
        header[16..20].copy_from_slice(&snap_len.to_le_bytes());
        header[20..].copy_from_slice(&LINKTYPE_ETHERNET.to_le_bytes());
        file.write_all(&header)?;
        Ok(Self { inner, file: Some(file), snap_len, written: 0 })
    }

    /// Frames in the file.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Writes out what is buffered.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), Write::flush)
    }

    /// The port inside.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    fn write(&mut self, bytes: &[u8], frames: &[FrameDesc]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        if frames.is_empty() {
            return Ok(());
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        for (frame, _) in (Burst { bytes, frames }).iter() {
            let kept = frame.len().min(self.snap_len as usize);
            let mut record = [0u8; 16];
            record[..4].copy_from_slice(&(now.as_secs() as u32).to_le_bytes());
            record[4..8].copy_from_slice(&now.subsec_micros().to_le_bytes());
            record[8..12].copy_from_slice(&(kept as u32).to_le_bytes());
            record[12..].copy_from_slice(&(frame.len() as u32).to_le_bytes());
            file.write_all(&record)?;
            file.write_all(&frame[..kept])?;
            self.written += 1;
        }
        Ok(())
    }

    fn capture(&mut self, bytes: &[u8], frames: &[FrameDesc]) {
        if let Err(error) = self.write(bytes, frames) {
            log::error!(
                "capture ended after {} frames: {error}; traffic goes on. Free space on that file system and start again",
                self.written
            );
            // Not flushed again on drop: it would fail again, and what is in the file ends at a record.
            if let Some(file) = self.file.take() {
                drop(file.into_parts());
            }
        }
    }
}

impl<P: FramePort, W: Write + Send> FramePort for Pcap<P, W> {
    fn caps(&self) -> Offloads {
        self.inner.caps()
    }

    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        let taken = self.inner.tx_burst(frames);
        self.capture(frames.bytes, &frames.frames[..taken.min(frames.frames.len())]);
        taken
    }

    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let before = into.len();
        let n = self.inner.rx_burst(into);
        let burst = into.burst().skip(before);
        self.capture(burst.bytes, burst.frames);
        n
    }

    fn drops(&self) -> Vec<PortDrop> {
        self.inner.drops()
    }

    fn held(&self) -> usize {
        self.inner.held()
    }

    fn steer(&mut self, by: Option<Arc<dyn Steering>>) {
        self.inner.steer(by);
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

    /// The frames of a capture file: what was kept, and how long it had been.
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
        let mut port = Pcap::new(Generator::new(Head::default(), 100), file.clone(), 48).unwrap();
        let mut arena = Arena::new();
        assert!(arena.push(&[0x55; 60], Offload::default()));
        assert_eq!(port.tx_burst(&arena.burst()), 1);
        let n = port.rx_burst(&mut arena); // appends: the frame that is there already is not written again
        assert_eq!(port.written(), 1 + n as u64);
        port.flush().unwrap();

        let bytes = file.0.lock().unwrap().clone();
        assert_eq!(&bytes[..8], [0xD4, 0xC3, 0xB2, 0xA1, 2, 0, 4, 0]);
        assert_eq!((le32(&bytes, 16), le32(&bytes, 20)), (48, 1));
        let records = records(&bytes);
        assert_eq!(records[0], (vec![0x55; 48], 60));
        assert_eq!(records.len(), 1 + n);
        let mut frame = vec![0; 100];
        for (seq, record) in records[1..].iter().enumerate() {
            sequence::fill(&mut frame, seq as u64);
            assert_eq!(*record, (frame[..48].to_vec(), 100));
        }
    }

    /// A file system that is full.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    #[test]
    fn a_full_disk_ends_the_capture_and_not_the_traffic() {
        let mut port = Pcap::new(Generator::new(Head::default(), 1500), Full, WHOLE_FRAMES).unwrap();
        let mut arena = Arena::new();
        let mut frames = 0;
        for _ in 0..100 {
            arena.clear();
            frames += port.rx_burst(&mut arena) as u64;
        }
        assert_eq!(frames, 6400);
        assert!(port.written() < frames);
        assert!(port.file.is_none());
    }
}
