//! Which way bursts take to a tap and from it: by vhost-net without a system call, by io_uring with
//! one for each burst, or with one for each frame.

use crate::named::named;

named! {
    /// Which way bursts take.
    TapWay, "a way" {
        /// The one that is cheapest on this machine.
        #[default]
        Cheaper = "cheaper",
        /// No system call, by vhost-net; where there is none, as for `Cheaper`.
        Vhost = "vhost",
        /// A system call for each burst, by io_uring; where there is none, as for `Frame`.
        Burst = "burst",
        /// A system call for each frame.
        Frame = "frame",
    }
}
