"""Jobs that compute or keep what nobody needs, and healthy ones that need it: `keeping.py JOB`."""

import torch
from families import CNN, GPT, MLP, UNet, gan
from job import random_batches, ready, run, sgd, train
from torch import nn


def recompute_gpt():
    model = GPT(width=128, depth=4, length=96)
    model.checkpointing = True
    train(model, random_batches(model, 8), sgd(model))


def frozen_with_gradients_cnn():
    """The optimizer has the head's parameters only, and the encoder is differentiated all the same."""
    encoder, head = CNN(), nn.Linear(10, 10)
    optimizer, train_batches = sgd(head), random_batches(encoder, 32)
    ready()
    for inputs, targets in train_batches:
        features = encoder(inputs)
        loss = encoder.loss(head(features), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def healthy_frozen_encoder():
    encoder, head = CNN().requires_grad_(False), MLP(10, 2)
    optimizer, train_batches = sgd(head), random_batches(encoder, 64)
    ready()
    for inputs, targets in train_batches:
        with torch.no_grad():
            features = encoder(inputs)
        loss = encoder.loss(head(features), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def adversarial(size, turns, detached):
    """A generator and a discriminator, which has so many turns for one of the other's."""
    generator, discriminator = gan()
    generator_optimizer, discriminator_optimizer = sgd(generator), sgd(discriminator)
    real = torch.randn(size, 768)
    ready()
    while True:
        for _ in range(turns):
            fake = generator(torch.randn(size, 64))
            discriminator_optimizer.zero_grad()
            judged = discriminator(fake.detach() if detached else fake)
            (judged.mean() - discriminator(real).mean()).backward()
            discriminator_optimizer.step()

        generator_optimizer.zero_grad()
        (-discriminator(generator(torch.randn(size, 64))).mean()).backward()
        generator_optimizer.step()


def frozen_with_gradients_gan():
    """The discriminator's pass goes back through the generator, whose gradients are thrown away."""
    adversarial(64, 5, detached=False)


def healthy_gan():
    adversarial(192, 1, detached=True)


def memory_creep_losses():
    """Losses of held-out samples are kept for the log, and with each of them its graph."""
    model, held_out_losses = CNN(), []
    optimizer, train_batches = sgd(model), random_batches(model, 16)
    held_out, wanted = model.batch(4)
    ready()
    for inputs, targets in train_batches:
        held_out_losses.append(model.loss(model(held_out), wanted))
        loss = model.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def memory_creep_outputs():
    """What the model said is kept, for a report that never comes."""
    model = UNet()
    optimizer, train_batches, predictions = sgd(model), random_batches(model, 16), []
    ready()
    for inputs, targets in train_batches:
        output = model(inputs)
        predictions.append(output.detach())
        loss = model.loss(output, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def healthy_bounded_replay():
    """Memory that grows no more once the buffer is full."""
    model, replay = MLP(), []

    def remember(step):
        replay.append(torch.randn(128, 640))
        del replay[:-100]

    train(model, random_batches(model, 128), sgd(model), remember)


if __name__ == "__main__":
    run(globals())
