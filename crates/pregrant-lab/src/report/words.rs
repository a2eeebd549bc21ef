//! Texts of the page that do not depend on figures.

use pregrant::net::path::PathName;

/// Describes in a sentence the work of a path for a frame. Rows named `zerocopy` are no path's: the
/// guest of such a row sends on the staging buffers that it received.
pub fn path(name: &str) -> Option<&'static str> {
    if name == "zerocopy" {
        return Some(ZEROCOPY);
    }
    name.parse().ok().map(of_path)
}

const ZEROCOPY: &str =
    "A staging buffer that was received is sent on as it is: its bytes are not copied again by the guest.";

fn of_path(path: PathName) -> &'static str {
    match path {
        PathName::Copy => {
            "From the guest: it grants the pages of each frame, the backend has the hypervisor copy them, a whole batch in one \
         call, and the guest ends the grants. To the guest: the same copy, into pages that stay granted from connect on."
        }
        PathName::Map => {
            "From the guest only: the backend copies the first 128 bytes and maps the pages of the rest, and unmaps them when \
         the frame is done with. This is what Linux's netback does."
        }
        PathName::Persistent => {
            "The guest never ends a grant; the backend maps each page when it first sees it, and from then on copies with memcpy."
        }
        PathName::Staging => {
            "At connect, before any data comes, the guest grants a list of buffers and the backend maps them. A frame is then a \
         memcpy and no grant operation. The number behind the name is the data length: longer frames go by copy."
        }
        PathName::GrefMapping => {
            "The guest names pages that the backend shall keep mapped; frames in them are copied with memcpy."
        }
        PathName::DataRing => {
            "Frames go through one ring of bytes that is mapped at connect; grants serve when it is full."
        }
        PathName::GuestCopy => {
            "The backend lends pages, and the guest copies what it receives out of them by grant copy."
        }
        PathName::Foreign => "The backend, which is trusted here, reads any page of the guest with memcpy.",
    }
}

/// Says how `bench net` and the demo measure.
pub const NET_METHOD: &str = "A guest and a backend are processes of their own. Every row of every repeat is a new network interface, from the \
    handshake to the close; it runs for some milliseconds before the count begins. What is counted are frames that \
    arrived, between two marks that both ends see; every frame carries a number that is checked. Rows take turns within \
    a repeat, so that a slow phase of the machine hits all of them alike; the figure is the median of the repeats, the \
    whisker their range, and \u{201c}times copy\u{201d} the median of the ratios within the repeats.";

/// Says how `bench latency` and the demo measure.
pub const LATENCY_METHOD: &str = "For latencies one frame of 64 bytes is in flight. The guest stamps it before it sends, the backend\u{2019}s port \
    stamps it (the request ends there), and the guest reads the clock when it has it again (the response).";

/// Says how `bench blk` measures.
pub const BLK_METHOD: &str = "Each guest has a RAM disk of its own, and asks for requests at random places of it; so many are in flight all the \
    time. One guest polls for its answers all the time; several share one core, and each sleeps when its requests are all in flight, \
    as the backend does when there are none. Every read is checked against what was written last. Rows take turns within a repeat; \
    bars are medians on a linear axis from 0, whiskers the range of the repeats. Operations, system calls and CPU time are of both \
    ends, for each request. On every path the guest\u{2019}s driver copies data to and from the pages that it grants.";

/// Says how `bench limit` and the demo measure the machine itself.
pub const LIMIT_METHOD: &str = "The ceilings are measured with no driver in the way: numbered cache lines handed from one core to the other, in a \
     ring of 256, frames by larger pools, and the system call under grant copy out of a second process.";

/// Says how the death of a backend is measured.
pub const RESTART_METHOD: &str = "For the restart the backend\u{2019}s process is killed with SIGKILL while frames move; a new process attaches to the \
    same domain and takes up the rings as they are in the guest\u{2019}s memory.";

/// Says how the restart of a disk's backend is measured.
pub const DISK_RESTART_METHOD: &str = "For the restart of a disk its backend\u{2019}s process is killed with requests in flight, and a new one \
    takes up the ring; the image is memory that outlives both. The guest knows what it wrote to each sector last, and checks every \
    read, and at the end all of the disk.";

/// Says how to read the figures.
pub const CAVEAT: &str = "Compare figures of one run on one machine, and nothing else. A virtual machine shares its cores with others that it \
    does not see, and has fast and slow phases of minutes. The loopback is Xen in user space: its grant operations cost \
    what the Linux kernel takes for the same service, not what Xen takes; figures of real Xen are not comparable. TX is \
    from the guest, RX to the guest. Gbit/s count the frames\u{2019} bytes with their headers, without preamble and FCS; a \
    line rate counts 20 bytes of preamble and gap for each frame, as line rates are quoted.";

pub fn mode(name: &str) -> &'static str {
    match name {
        "poll" => "both ends poll all the time",
        "event" => "both ends sleep until they are notified",
        "adaptive" => "both ends poll for a while, then sleep",
        _ => "",
    }
}
