//! Which transport bursts have to a tap and from it: vhost-net without a system call, io_uring with
//! one for each burst, or one for each frame (`pregrant back`'s experiment `tap-way`).

use crate::choice::named;

named! {
    /// A kind of transport.
    TransportKind, "a way" {
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
