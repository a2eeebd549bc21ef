//! The transports of bursts to and from a tap: vhost-net without system calls, io_uring with one
//! system call for each burst, or one system call for each frame (`pregrant back`'s experiment
//! `tap-way`).

use crate::choice::named;

named! {
    TransportKind, "a way" {
        /// The transport that is cheapest on this machine, by a measurement.
        #[default]
        Cheaper = "cheaper",
        /// vhost-net, without system calls. If there is no vhost-net, the transport is chosen as
        /// for `Cheaper`.
        Vhost = "vhost",
        /// io_uring, with one system call for each burst. If there is no io_uring, `Frame` is used.
        Burst = "burst",
        /// One system call for each frame.
        Frame = "frame",
    }
}
