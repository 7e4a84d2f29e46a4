//! Which KV block is where: identity, descriptors, prefix index, publish, lookup, fetch.
