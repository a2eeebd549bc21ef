//! The transports of bursts to and from a tap: vhost-net without system calls, io_uring with one
//! per burst, or one system call per frame (`pregrant back`'s experiment `tap-way`).

use crate::choice::named;

named! {
    TransportKind, "a way" {
        /// The cheapest on this machine, which is measured.
        #[default]
        Cheaper = "cheaper",
        /// vhost-net, without system calls. If it is missing, as `Cheaper`.
        Vhost = "vhost",
        /// io_uring, with a system call per burst. If it is missing, as `Frame`.
        Burst = "burst",
        /// A system call per frame.
        Frame = "frame",
    }
}
